// What the trainer's model computes from a directory of Hugging Face, for a test that knows better:
//   model_probe DIRECTORY BATCH LENGTH GRADIENTS [KEY=VALUE...]
// reads BATCH * (LENGTH + 1) tokens from the standard input, writes the loss and then the logits after every
// token of every sequence, one per line, and the gradients of the loss, by the names of the parameters, to
// the new directory GRADIENTS. Keys of config.json are replaced by those that are given.
#include <fmt/format.h>

#include <algorithm>
#include <cstdio>
#include <iostream>
#include <vector>

#include "apps/command_line/pairs.hpp"
#include "apps/gpt/pretrained/export_model.hpp"
#include "apps/gpt/pretrained/pretrained_model.hpp"
#include "core/errors.hpp"
#include "core/number.hpp"
#include "tests/apps_gpt/typed_model.hpp"

namespace troupe::apps::gpt {
namespace {

using core::Result;
using Tensors = std::vector<std::vector<float>>;

Result<void> probe(const std::string& directory, BatchShape shape, const std::string& gradients_directory,
                   const std::vector<std::string>& keys) {
  const auto origin = TRY(PretrainedModel::open(directory, shape.length, {TRY(pairs_of("KEY", keys)), {}}));
  auto model = TRY(Model::create(origin->config(), shape));
  Tensors values, gradients;
  std::vector<const std::byte*> readable;
  std::vector<float*> writable;
  for (const auto& spec : model.table().specs) {
    TRY(origin->read(spec, values.emplace_back(spec.elements())));
    gradients.emplace_back(spec.elements());
    readable.push_back(reinterpret_cast<const std::byte*>(values.back().data()));
    writable.push_back(gradients.back().data());
  }
  std::vector<std::int32_t> tokens, targets;
  for (std::size_t sequence = 0; sequence < shape.batch; ++sequence) {
    std::int32_t token = 0;
    std::cin >> token;
    for (std::size_t t = 0; t < shape.length; ++t) {
      tokens.push_back(token);
      std::cin >> token;
      targets.push_back(token);
    }
  }
  if (!std::cin) return core::fail(core::Errc::invalid_argument, "too few tokens");
  fmt::print("{}\n", TRY(model.forward_backward(readable, writable, tokens, targets)));
  for (std::size_t row = 0; row < shape.rows(); ++row) {
    const std::size_t t = row % shape.length;
    const auto logits = TRY(model.logits(readable, std::span(tokens).subspan(row - t, t + 1)));
    for (const float logit : logits) fmt::print("{}\n", logit);
  }
  const auto read = [&](std::size_t parameter, core::ElementRange range, std::span<float> piece) {
    std::copy_n(gradients[parameter].begin() + range.start, piece.size(), piece.begin());
    return Result<void>{};
  };
  return export_model(model.config(), read, {.directory = gradients_directory, .origin = origin.get()});
}

}  // namespace
}  // namespace troupe::apps::gpt

int main(int argc, char** argv) {
  using troupe::core::parse_number;
  if (argc < 5) return 2;
  const auto batch = parse_number<std::size_t>(argv[2], {1, 64});
  const auto length = parse_number<std::size_t>(argv[3], {1, 4096});
  if (!batch || !length) return 2;
  const auto done = troupe::apps::gpt::probe(argv[1], {*batch, *length}, argv[4], {argv + 5, argv + argc});
  if (done) return 0;
  fmt::print(stderr, "model_probe: {}\n", done.error().message);
  return 1;
}
