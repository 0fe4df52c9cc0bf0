// The microbatches that the trainer takes from chats, as bytes, for a test that trains on the same:
//   batch_probe CHATS CONTEXT BATCH LANES MICROBATCHES STEPS
// writes two lines for each sequence, in order: its tokens, then its targets, of which -1 is none.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <cstdio>

#include "apps/gpt/text/data.hpp"
#include "core/errors.hpp"
#include "core/number.hpp"

namespace troupe::apps::gpt {
namespace {

struct Shape {
  std::size_t context = 0, batch = 0;
  int lanes = 0, microbatches = 0, steps = 0;
};

core::Result<void> probe(const std::string& chats, const Shape& shape) {
  TextCodec codec;
  const Corpus corpus =
      TRY(Corpus::open({.text = chats, .context = shape.context, .vocabulary = 256}, codec));
  Batch batch({shape.batch, shape.context});
  for (core::Step step{0}; step.value < shape.steps; ++step.value) {
    for (core::Lane lane{0}; lane.value < shape.lanes; ++lane.value) {
      for (int m = 0; m < shape.microbatches; ++m) {
        batch.fill_at_random(corpus.training(), {1, step, lane, static_cast<std::uint32_t>(m)});
        for (std::size_t sequence = 0; sequence < shape.batch; ++sequence) {
          const auto from = sequence * shape.context;
          fmt::print("{}\n{}\n", fmt::join(batch.tokens().subspan(from, shape.context), " "),
                     fmt::join(batch.targets().subspan(from, shape.context), " "));
        }
      }
    }
  }
  return {};
}

}  // namespace
}  // namespace troupe::apps::gpt

int main(int argc, char** argv) {
  using troupe::core::parse_number;
  if (argc != 7) {
    fmt::print(stderr, "batch_probe CHATS CONTEXT BATCH LANES MICROBATCHES STEPS\n");
    return 1;
  }
  int numbers[5] = {};
  for (int i = 0; i < 5; ++i) {
    const auto number = parse_number<int>(argv[i + 2], {1, 1 << 20});
    if (!number) {
      fmt::print(stderr, "batch_probe: {} is not a number from 1 up\n", argv[i + 2]);
      return 1;
    }
    numbers[i] = *number;
  }
  const auto done = troupe::apps::gpt::probe(
      argv[1], {static_cast<std::size_t>(numbers[0]), static_cast<std::size_t>(numbers[1]), numbers[2],
                numbers[3], numbers[4]});
  if (done) return 0;
  fmt::print(stderr, "batch_probe: {}\n", done.error().message);
  return 1;
}
