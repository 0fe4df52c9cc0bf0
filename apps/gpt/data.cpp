#include "apps/gpt/data.hpp"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <string_view>
#include <utility>

#include "apps/gpt/layers/cross_entropy.hpp"
#include "apps/gpt/text/documents.hpp"
#include "core/errors.hpp"
#include "core/random.hpp"

namespace troupe::apps::gpt {

using core::Errc;
using core::fail;
using core::Result;

namespace {

// The maximum number of sequences in a microbatch (model.cpp allows fewer): places in the stream of random
// numbers.
constexpr std::uint64_t kMostSequences = 1 << 24;

// A descriptor that closes itself; the map outlives it.
struct File {
  int descriptor;
  ~File() {
    if (descriptor >= 0) ::close(descriptor);
  }
};

std::size_t training_part(std::size_t tokens) {
  return tokens - tokens / 20;
}

}  // namespace

std::int32_t TokenText::token(std::size_t place) const {
  if (!bytes_.empty()) return bytes_[place];
  return tokens_[place] < 0 ? ~tokens_[place] : tokens_[place];
}

std::int32_t TokenText::target(std::size_t place) const {
  if (!bytes_.empty()) return bytes_[place];
  return tokens_[place] < 0 ? kNoTarget : tokens_[place];
}

std::size_t TokenText::starts(std::size_t length) const {
  if (row_ > 1) return length < row_ ? size() / row_ : 0;
  return size() > length ? size() - length : 0;
}

void Corpus::Unmap::operator()(const std::uint8_t* text) const {
  ::munmap(const_cast<std::uint8_t*>(text), bytes);
}

Result<Corpus::Map> Corpus::map_file(const std::string& path) {
  const File file{::open(path.c_str(), O_RDONLY | O_CLOEXEC)};
  if (file.descriptor < 0) {
    return fail(Errc::not_found, "cannot open the text {}: {}; scripts/fetch_text writes one", path,
                std::strerror(errno));
  }
  struct stat status = {};
  if (::fstat(file.descriptor, &status) != 0 || !S_ISREG(status.st_mode)) {
    return fail(Errc::invalid_argument, "the text {} must be a regular file", path);
  }
  const auto bytes = static_cast<std::size_t>(status.st_size);
  if (bytes == 0) return fail(Errc::invalid_argument, "the text {} is empty", path);
  void* map = ::mmap(nullptr, bytes, PROT_READ, MAP_PRIVATE, file.descriptor, 0);
  if (map == MAP_FAILED) return fail(Errc::io, "cannot map the text {}: {}", path, std::strerror(errno));
  return Map{static_cast<const std::uint8_t*>(map), Unmap{bytes}};
}

Result<Corpus> Corpus::open(const std::string& path, std::size_t context) {
  auto map = TRY(map_file(path));
  const std::size_t bytes = map.get_deleter().bytes;
  if (bytes / 20 <= context) {
    return fail(
        Errc::invalid_argument,
        "the text {} has {} bytes; a context of {} needs at least {}, because the last 5 % are kept for "
        "evaluation",
        path, bytes, context, 20 * (context + 1));
  }
  return Corpus(std::move(map), {}, 1, training_part(bytes));
}

Result<Corpus> Corpus::open(const std::string& path, std::size_t context, TextCodec& codec) {
  const bool has_documents = path.ends_with(".jsonl");
  if (codec.is_bytes() && !has_documents) return open(path, context);
  const auto map = TRY(map_file(path));
  const std::string_view text(reinterpret_cast<const char*>(map.get()), map.get_deleter().bytes);
  if (has_documents) {
    const auto documents = TRY(read_documents(text, codec));
    auto rows = pack_documents(documents, context + 1, codec.end_of_text().value_or(0));
    const std::size_t count = rows.size() / (context + 1);
    if (count < 2) {
      return fail(Errc::invalid_argument,
                  "the documents of {} fill {} sequences of {} tokens; 2 are needed, one of them for "
                  "evaluation: use a shorter context or more text",
                  path, count, context);
    }
    const std::size_t training = std::min(training_part(count), count - 1);
    return Corpus(Map(nullptr, Unmap{}), std::move(rows), context + 1, training * (context + 1));
  }
  auto tokens = TRY(codec.encode(text));
  if (tokens.size() / 20 <= context) {
    return fail(
        Errc::invalid_argument,
        "the text {} has {} tokens; a context of {} needs at least {}, because the last 5 % are kept for "
        "evaluation",
        path, tokens.size(), context, 20 * (context + 1));
  }
  const std::size_t training = training_part(tokens.size());
  return Corpus(Map(nullptr, Unmap{}), std::move(tokens), 1, training);
}

TokenText Corpus::training() const {
  if (map_) return std::span(map_.get(), training_tokens_);
  return {std::span(tokens_).first(training_tokens_), row_};
}

TokenText Corpus::evaluation() const {
  if (map_) return std::span(map_.get(), map_.get_deleter().bytes).subspan(training_tokens_);
  return {std::span(tokens_).subspan(training_tokens_), row_};
}

std::size_t sequences_in_order(const TokenText& text, std::size_t length) {
  if (text.row() > 1) return text.starts(length);
  // The last may be shorter, so that it has all remaining targets.
  return text.size() > 1 ? (text.size() - 1 + length - 1) / length : 0;
}

namespace {

/// Where the sequences of a microbatch begin.
class RandomStarts {
 public:
  RandomStarts(const TokenText& text, std::size_t length, const MicrobatchPlace& place)
      : text_(text),
        starts_(text.starts(length)),
        first_(place.microbatch * kMostSequences),
        random_(place.seed, "data", place.step, place.lane) {
    CHECK(starts_ > 0, "the text must be longer than one sequence");
  }

  std::size_t of(std::size_t sequence) const {
    // A file may be longer than 32 bits can count.
    const std::uint64_t index = 2 * (first_ + sequence);
    const std::uint64_t draw = std::uint64_t{random_.bits(index)} << 32 | random_.bits(index + 1);
    return text_.start(draw % starts_);
  }

 private:
  const TokenText& text_;
  std::uint64_t starts_, first_;
  core::CounterRandom random_;
};

}  // namespace

std::size_t targets_at_random(const TokenText& text, BatchShape shape, const MicrobatchPlace& place) {
  if (text.learns_all()) return shape.rows();
  const RandomStarts starts(text, shape.length, place);
  std::size_t count = 0;
  for (std::size_t sequence = 0; sequence < shape.batch; ++sequence) {
    const std::size_t start = starts.of(sequence);
    for (std::size_t t = 1; t <= shape.length; ++t) count += text.target(start + t) == kNoTarget ? 0 : 1;
  }
  return count;
}

Batch::Batch(BatchShape shape) : shape_(shape), tokens_(shape.rows()), targets_(shape.rows()) {}

void Batch::fill_at_random(const TokenText& text, const MicrobatchPlace& place) {
  const RandomStarts starts(text, shape_.length, place);
  for (std::size_t sequence = 0; sequence < shape_.batch; ++sequence)
    copy(text, starts.of(sequence), sequence);
}

void Batch::fill_evenly(const TokenText& text, std::size_t index, std::size_t count) {
  const std::size_t starts = text.starts(shape_.length);
  CHECK(starts > 0 && index < count, "the text must be longer than one sequence, and index < count");
  for (std::size_t sequence = 0; sequence < shape_.batch; ++sequence) {
    const std::size_t place = index * shape_.batch + sequence;
    copy(text, text.start(starts * place / (count * shape_.batch)), sequence);
  }
}

std::size_t Batch::fill_in_order(const TokenText& text, std::size_t first) {
  const std::size_t count = sequences_in_order(text, shape_.length);
  const std::size_t step = text.row() > 1 ? text.row() : shape_.length;
  std::fill(tokens_.begin(), tokens_.end(), 0);
  std::fill(targets_.begin(), targets_.end(), kNoTarget);
  for (std::size_t sequence = 0; sequence < shape_.batch && first + sequence < count; ++sequence)
    copy(text, (first + sequence) * step, sequence);
  return target_count();
}

std::size_t Batch::target_count() const {
  return learned_rows(targets_);
}

// Nothing is written past the end of the text.
void Batch::copy(const TokenText& text, std::size_t start, std::size_t sequence) {
  for (std::size_t t = 0; t < shape_.length && start + t + 1 < text.size(); ++t) {
    tokens_[sequence * shape_.length + t] = text.token(start + t);
    targets_[sequence * shape_.length + t] = text.target(start + t + 1);
  }
}

}  // namespace troupe::apps::gpt
