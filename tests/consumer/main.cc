// What a program in C++ needs of kdelta: an operator on its own memory, and a model that answers.
#include <kdelta/api/engine.h>
#include <kdelta/api/ops.h>

#include <iostream>
#include <vector>

int main(int argc, char** argv) try {
  std::vector<float> gate = {-1, 0, 1, 2}, up = {1, 1, 2, 2}, out(4);
  const kdelta::ops::Tensor g(gate.data(), {2, 2}), u(up.data(), {2, 2}), o(out.data(), {2, 2});
  kdelta::ops::Context context;
  kdelta::ops::activation(context, {.kind = KDELTA_SWIGLU, .gate = g, .up = u, .out = o});
  std::cout << "swiglu " << out[3] << '\n';
  if (argc > 1) {
    kdelta::Engine engine = kdelta::Engine::load({.model = argv[1], .threads = 1});
    std::cout << engine.generate(engine.tokenize("In the beginning"), {.temperature = 0, .max_tokens = 6}).text << '\n';
  }
  try {
    kdelta::Engine::load({.model = "/nowhere"});
  } catch (const std::exception& e) {  // across the library's edge
    std::cout << "refused: " << e.what() << '\n';
  }
} catch (const std::exception& e) {
  std::cerr << e.what() << '\n';
  return 1;
}
