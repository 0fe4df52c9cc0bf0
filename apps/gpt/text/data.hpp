#pragma once

#include <time.h>

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "apps/gpt/model/activations.hpp"
#include "apps/gpt/text/text_codec.hpp"
#include "core/ids.hpp"
#include "core/result.hpp"
#include "posix/descriptor.hpp"
#include "posix/mapped_file.hpp"

namespace troupe::apps::gpt {

/// Consecutive tokens in someone else's memory: bytes, or numbers, where ~t is token t, not to be learned.
/// Sequences begin anywhere, or only at the first token of rows with a fixed number of tokens.
class TokenText {
 public:
  TokenText(std::span<const std::uint8_t> bytes) : bytes_(bytes) {}     // NOLINT: bytes are tokens
  TokenText(const std::vector<std::uint8_t>& bytes) : bytes_(bytes) {}  // NOLINT: bytes are tokens
  /// If `row` is 1, sequences begin anywhere.
  TokenText(std::span<const std::int32_t> tokens, std::size_t row) : tokens_(tokens), row_(row) {}

  std::size_t size() const { return bytes_.size() + tokens_.size(); }
  bool learns_all() const { return tokens_.empty(); }  ///< surely; otherwise target() says
  std::size_t row() const { return row_; }
  std::int32_t token(std::size_t place) const;
  /// The token, or kNoTarget.
  std::int32_t target(std::size_t place) const;

  /// The number of sequences of `length` tokens, each with a target after its last, that begin in the text;
  /// and where.
  std::size_t starts(std::size_t length) const;
  std::size_t start(std::size_t index) const { return index * row_; }

 private:
  std::span<const std::uint8_t> bytes_;
  std::span<const std::int32_t> tokens_;
  std::size_t row_ = 1;
};

/// Which files are read, and for which model.
struct CorpusFiles {
  std::string text;
  std::string evaluation = {};  ///< empty: the last 5 % of the text, which are never trained on
  std::size_t context = 0;
  std::size_t vocabulary = 0;  ///< rows of the model's embedding
};

/// A text file as tokens, and those to evaluate with.
class Corpus {
 public:
  /// Bytes, memory-mapped. The file must hold enough text for one sequence of `context` tokens in each part.
  static core::Result<Corpus> open(const std::string& path, std::size_t context);
  /// The files as the codec encodes them, all in memory unless tokens are bytes: for *.jsonl the documents
  /// (see read_documents()) packed into rows, for other files one text. Errc::invalid_argument names a token
  /// that the model has no row for.
  static core::Result<Corpus> open(const CorpusFiles& files, TextCodec& codec);

  TokenText training() const;
  TokenText evaluation() const;
  /// Hashes the text that is trained on and where its parts begin: equal for equal data, wherever the file
  /// is.
  std::uint64_t hash() const { return hash_; }
  /// The hash of the file that is evaluated with, if it is one of its own.
  std::optional<std::uint64_t> evaluation_hash() const;
  /// Errc::io names a mapped file that has other bytes than at open(), or fewer. Called after a batch was
  /// filled, before anything depends on it.
  core::Result<void> check_unchanged() const;

 private:
  /// A mapped file, and how to see that somebody wrote to it.
  struct Map {
    std::string path;
    posix::Descriptor file;
    posix::MappedFile bytes;
    std::uint64_t hash = 0;
    mutable timespec written = {};  ///< when the hash was last found to be right

    std::span<const std::uint8_t> text() const;
    core::Result<void> check_unchanged() const;
  };

  /// All of a file.
  struct Tokens {
    std::optional<Map> map = {};  ///< if they are bytes
    std::vector<std::int32_t> tokens = {};
    std::size_t row = 1;

    std::size_t size() const { return map ? map->bytes.bytes().size() : tokens.size(); }
    TokenText part(std::size_t first, std::size_t count) const;
  };

  Corpus(Tokens text, std::size_t training_tokens);
  static std::uint64_t hash_of(const Tokens& text, std::size_t training_tokens);
  static core::Result<Map> map_file(const std::string& path);
  static core::Result<Tokens> read(const std::string& path, const CorpusFiles& files, TextCodec& codec);
  static core::Result<std::size_t> training_tokens(const Tokens& tokens, const std::string& path,
                                                   std::size_t context);

  Tokens text_;
  std::optional<Tokens> evaluation_;  ///< empty: the rest of the text
  std::size_t training_tokens_;
  std::uint64_t hash_;
};

/// Identifies a microbatch. Equal places have equal text, whichever rank asks.
struct MicrobatchPlace {
  std::uint64_t seed = 0;
  core::Step step;
  core::Lane lane;
  std::uint32_t microbatch = 0;
};

/// The number of targets that Batch::fill_at_random() gives the microbatch.
std::size_t targets_at_random(const TokenText& text, BatchShape shape, const MicrobatchPlace& place);

/// The number of consecutive sequences in a text, for Batch::fill_in_order().
std::size_t sequences_in_order(const TokenText& text, std::size_t length);

/// One microbatch (B, T): targets are the tokens shifted by one.
class Batch {
 public:
  explicit Batch(BatchShape shape);

  /// Sequences from random places of `text`, in which at least one must begin.
  void fill_at_random(const TokenText& text, const MicrobatchPlace& place);

  /// Batch `index` of `count` batches that cover `text` evenly, the same ones each time.
  void fill_evenly(const TokenText& text, std::size_t index, std::size_t count);

  /// Sequences first, first + 1, ... of those that follow each other without gap or overlap; anything past
  /// their end is not learned. Returns how many tokens are learned.
  std::size_t fill_in_order(const TokenText& text, std::size_t first);

  std::span<const std::int32_t> tokens() const { return tokens_; }
  std::span<const std::int32_t> targets() const { return targets_; }
  std::size_t target_count() const;

 private:
  void copy(const TokenText& text, std::size_t start, std::size_t sequence);

  BatchShape shape_;
  std::vector<std::int32_t> tokens_;   // (B, T)
  std::vector<std::int32_t> targets_;  // (B, T)
};

}  // namespace troupe::apps::gpt
