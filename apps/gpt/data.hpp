#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "apps/gpt/activations.hpp"
#include "core/ids.hpp"
#include "core/result.hpp"

namespace troupe::apps::gpt {

/// A text file as byte tokens, memory-mapped. Its last 5 % are for evaluation and never trained on.
class Corpus {
 public:
  /// The file must hold enough text for one sequence of `context` tokens in each part.
  static core::Result<Corpus> open(const std::string& path, std::size_t context);

  std::span<const std::uint8_t> training() const { return text().first(training_bytes_); }
  std::span<const std::uint8_t> evaluation() const { return text().subspan(training_bytes_); }

 private:
  struct Unmap {
    std::size_t bytes = 0;
    void operator()(const std::uint8_t* text) const;
  };

  explicit Corpus(std::unique_ptr<const std::uint8_t, Unmap> map);
  std::span<const std::uint8_t> text() const { return {map_.get(), map_.get_deleter().bytes}; }

  std::unique_ptr<const std::uint8_t, Unmap> map_;
  std::size_t training_bytes_;
};

/// Names a microbatch. Equal places hold equal text, whichever rank asks.
struct MicrobatchPlace {
  std::uint64_t seed = 0;
  core::Step step;
  core::Lane lane;
  std::uint32_t microbatch = 0;
};

/// One microbatch (B, T): targets are the tokens one place further.
class Batch {
 public:
  explicit Batch(BatchShape shape);

  /// Sequences from random places of `text`, which is longer than one sequence.
  void fill_at_random(std::span<const std::uint8_t> text, const MicrobatchPlace& place);

  /// Batch `index` of `count` that cover `text` evenly, the same ones each time.
  void fill_evenly(std::span<const std::uint8_t> text, std::size_t index, std::size_t count);

  std::span<const std::int32_t> tokens() const { return tokens_; }
  std::span<const std::int32_t> targets() const { return targets_; }

 private:
  void copy(std::span<const std::uint8_t> text, std::size_t start, std::size_t sequence);

  BatchShape shape_;
  std::vector<std::int32_t> tokens_;   // (B, T)
  std::vector<std::int32_t> targets_;  // (B, T)
};

}  // namespace troupe::apps::gpt
