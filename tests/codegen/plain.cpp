extern "C" void run_forward(void* storage, int layer);
extern "C" void run_backward(void* storage, int layer);

struct chunk;
struct buffer;
struct stream;

extern "C" void forward(chunk&, buffer& x, const stream&, int layer) {
  run_forward(&x, layer);
  run_forward(&x, layer + 1);
}

extern "C" void backward(chunk&, buffer& x, const stream&, int layer) {
  run_backward(&x, layer + 1);
  run_backward(&x, layer);
}
