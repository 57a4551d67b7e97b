#include <string>

std::string from_compiled();

int main() { return from_compiled().empty() ? 1 : 0; }
