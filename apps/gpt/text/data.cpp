#include "apps/gpt/text/data.hpp"

#include <fcntl.h>
#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <string_view>
#include <utility>

#include "apps/gpt/layers/cross_entropy.hpp"
#include "apps/gpt/text/documents.hpp"
#include "core/errors.hpp"
#include "core/hash.hpp"
#include "core/interop/lfs_pointer.hpp"
#include "core/random.hpp"

namespace troupe::apps::gpt {

using core::Errc;
using core::fail;
using core::Result;

namespace {

// The maximum number of sequences in a microbatch (model.cpp allows fewer): places in the stream of random
// numbers.
constexpr std::uint64_t kMostSequences = 1 << 24;

std::size_t training_part(std::size_t tokens) {
  return tokens - tokens / 20;
}

Result<void> check_bytes(std::string_view text, std::size_t vocabulary, const std::string& path) {
  if (vocabulary >= 256) return {};
  const auto found = std::find_if(text.begin(), text.end(),
                                  [&](char byte) { return static_cast<unsigned char>(byte) >= vocabulary; });
  if (found == text.end()) return {};
  return fail(
      Errc::invalid_argument,
      "{}: tokens are bytes, since the model has no tokenizer.json, and byte {} is {:#04x}; the model has {} "
      "rows, for 0 to {}",
      path, found - text.begin(), static_cast<unsigned char>(*found), vocabulary, vocabulary - 1);
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

Result<Corpus::Map> Corpus::map_file(const std::string& path) {
  posix::Descriptor file(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (!file.is_open()) {
    return fail(Errc::not_found, "cannot open the text {}: {}; scripts/fetch_text writes one", path,
                std::strerror(errno));
  }
  struct stat status = {};
  if (::fstat(file.get(), &status) != 0 || !S_ISREG(status.st_mode)) {
    return fail(Errc::invalid_argument, "the text {} must be a regular file", path);
  }
  if (status.st_size == 0) return fail(Errc::invalid_argument, "the text {} is empty", path);
  auto bytes = TRY(posix::MappedFile::open(file, "the text " + path));
  TRY(core::check_is_no_pointer(bytes.bytes().first(std::min(bytes.bytes().size(), core::kPointerBytes)),
                                path));
  const auto hash = core::hash64(bytes.bytes());
  return Map{path, std::move(file), std::move(bytes), hash, status.st_mtim};
}

std::span<const std::uint8_t> Corpus::Map::text() const {
  return {reinterpret_cast<const std::uint8_t*>(bytes.bytes().data()), bytes.bytes().size()};
}

Result<void> Corpus::Map::check_unchanged() const {
  struct stat status = {};
  if (::fstat(file.get(), &status) != 0)
    return fail(Errc::io, "cannot look at the text {}: {}", path, std::strerror(errno));
  const auto size = static_cast<std::size_t>(status.st_size);
  if (size < bytes.bytes().size())
    return fail(Errc::io,
                "the text {} became shorter while it was read: it had {} bytes and has {}; start again when "
                "nobody writes to it",
                path, bytes.bytes().size(), size);
  const auto now = status.st_mtim;
  if (now.tv_sec == written.tv_sec && now.tv_nsec == written.tv_nsec) return {};
  // Somebody may have appended to it, or only touched it.
  if (core::hash64(bytes.bytes()) != hash)
    return fail(Errc::io,
                "the text {} was overwritten while it was read; start again when nobody writes to it", path);
  written = now;
  return {};
}

std::uint64_t Corpus::hash_of(const Tokens& text, std::size_t training_tokens) {
  const std::uint64_t parts[] = {text.row, training_tokens};
  const auto shape = core::hash64(std::as_bytes(std::span(parts)));
  return core::hash64(text.map ? text.map->bytes.bytes() : std::as_bytes(std::span(text.tokens)), shape);
}

Corpus::Corpus(Tokens text, std::size_t training_tokens)
    : text_(std::move(text)), training_tokens_(training_tokens), hash_(hash_of(text_, training_tokens_)) {}

std::optional<std::uint64_t> Corpus::evaluation_hash() const {
  return evaluation_ ? std::optional(hash_of(*evaluation_, 0)) : std::nullopt;
}

Result<void> Corpus::check_unchanged() const {
  if (text_.map) TRY(text_.map->check_unchanged());
  if (evaluation_ && evaluation_->map) TRY(evaluation_->map->check_unchanged());
  return {};
}

TokenText Corpus::Tokens::part(std::size_t first, std::size_t count) const {
  if (map) return map->text().subspan(first, count);
  return {std::span(tokens).subspan(first, count), row};
}

Result<std::size_t> Corpus::training_tokens(const Tokens& tokens, const std::string& path,
                                            std::size_t context) {
  if (tokens.row > 1) {
    const std::size_t count = tokens.size() / tokens.row;
    if (count < 2)
      return fail(Errc::invalid_argument,
                  "the documents of {} fill {} sequences of {} tokens; 2 are needed, one of them for "
                  "evaluation: use a shorter context, more text, or --evaluation-text",
                  path, count, context);
    return std::min(training_part(count), count - 1) * tokens.row;
  }
  if (tokens.size() / 20 <= context)
    return fail(Errc::invalid_argument,
                "the text {} has {} {}; a context of {} needs at least {}, because the last 5 % are kept for "
                "evaluation, or --evaluation-text",
                path, tokens.size(), tokens.map ? "bytes" : "tokens", context, 20 * (context + 1));
  return training_part(tokens.size());
}

Result<Corpus> Corpus::open(const std::string& path, std::size_t context) {
  Tokens bytes;
  bytes.map = TRY(map_file(path));
  const auto training = TRY(training_tokens(bytes, path, context));
  return Corpus(std::move(bytes), training);
}

Result<Corpus::Tokens> Corpus::read(const std::string& path, const CorpusFiles& files, TextCodec& codec) {
  Tokens read;
  const bool has_documents = path.ends_with(".jsonl");
  if (codec.unreadable() && !has_documents) return tl::unexpected(*codec.unreadable());
  auto map = TRY(map_file(path));
  const std::string_view text(reinterpret_cast<const char*>(map.text().data()), map.text().size());
  if (has_documents) {
    auto documents = read_documents(text, codec, files.vocabulary);
    if (!documents) return fail(documents.error().code, "{}: {}", path, documents.error().message);
    const auto end = codec.end_of_text().value_or(0);
    const bool is_known = end >= 0 && static_cast<std::size_t>(end) < files.vocabulary;
    read.tokens = pack_documents(*documents, files.context + 1, is_known ? end : 0);
    read.row = files.context + 1;
    TRY(map.check_unchanged());
  } else if (codec.is_bytes()) {
    TRY(check_bytes(text, files.vocabulary, path));
    read.map = std::move(map);
  } else {
    auto tokens = codec.encode(text);
    if (!tokens) return fail(tokens.error().code, "{}: {}", path, tokens.error().message);
    const auto known = check_tokens(*tokens, files.vocabulary, codec);
    if (!known) return fail(known.error().code, "{}: {}", path, known.error().message);
    read.tokens = std::move(*tokens);
    TRY(map.check_unchanged());
  }
  return read;
}

Result<Corpus> Corpus::open(const CorpusFiles& files, TextCodec& codec) {
  auto text = TRY(read(files.text, files, codec));
  if (files.evaluation.empty()) {
    const auto training = TRY(training_tokens(text, files.text, files.context));
    return Corpus(std::move(text), training);
  }
  const std::size_t size = text.size();
  Corpus corpus(std::move(text), size);
  corpus.evaluation_ = TRY(read(files.evaluation, files, codec));
  for (const auto& [part, path] :
       {std::pair(corpus.training(), &files.text), {corpus.evaluation(), &files.evaluation}}) {
    if (part.starts(files.context) > 0) continue;
    return fail(Errc::invalid_argument,
                "{} has {} tokens; a context of {} needs at least {}: use a shorter context or more text",
                *path, part.size(), files.context, files.context + 1);
  }
  return corpus;
}

TokenText Corpus::training() const {
  return text_.part(0, training_tokens_);
}

TokenText Corpus::evaluation() const {
  if (evaluation_) return evaluation_->part(0, evaluation_->size());
  return text_.part(training_tokens_, text_.size() - training_tokens_);
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
