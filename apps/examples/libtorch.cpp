// A LibTorch model that learns y = sin(3 x). One rank or many, the numbers are the same:
//
//   build/release/bin/libtorch
//   build/release/bin/troupe launch --standalone --nproc-per-node 2 -- build/release/bin/libtorch
#include <torch/torch.h>
#include <troupe/torch.hpp>

#include <cstdio>

struct Net : torch::nn::Module {
  Net() {
    hidden = register_module("hidden", torch::nn::Linear(1, 32));
    out = register_module("out", torch::nn::Linear(32, 1));
  }
  torch::Tensor forward(const torch::Tensor& x) { return out->forward(torch::tanh(hidden->forward(x))); }
  torch::nn::Linear hidden{nullptr}, out{nullptr};
};

int main(int argc, char** argv) try {
  torch::manual_seed(0);
  torch::set_num_threads(1);
  Net net;
  std::int64_t stop = 200;
  bool saves = false;
  troupe::torch::Trainer::Options options = {{"strategy", "zero1"}, {"lanes", "4"}, {"clip-norm", "1"}};
  for (int i = 1; i + 1 < argc; i += 2) {
    const std::string name = argv[i] + 2;  // --stop 100 --checkpoints run
    saves = saves || name == "checkpoints";
    name == "stop" ? void(stop = std::stoll(argv[i + 1])) : void(options.emplace_back(name, argv[i + 1]));
  }
  troupe::torch::Trainer trainer(net.named_parameters(), options);
  if (saves) trainer.restore();
  while (trainer.next_step() < stop) {
    const auto outcome =
        trainer.step(0.02, [&](std::int64_t, int) {  // the generator depends on step and lane
          const torch::Tensor x = torch::empty({64, 1}).uniform_(-1, 1);
          return torch::mse_loss(net.forward(x), torch::sin(3 * x));
        });
    if (trainer.next_step() % 50 != 0) continue;
    if (trainer.rank() == 0)
      std::printf("step %d loss %.9f\n", static_cast<int>(trainer.next_step()), outcome.loss);
    if (saves) trainer.save();
  }
  trainer.close();
  return 0;
} catch (const std::exception& error) {
  std::fprintf(stderr, "libtorch: %s\n", error.what());
  return 1;
}
