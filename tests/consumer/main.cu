// The program of main.cpp, compiled by nvcc beside a kernel of its own.
#include "main.cpp"

__global__ void fill(float* x) { x[threadIdx.x] = 1.0F; }
