#include "apps/gpt/data.hpp"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <utility>

#include "core/errors.hpp"
#include "core/random.hpp"

namespace troupe::apps::gpt {

using core::Errc;
using core::fail;
using core::Result;

namespace {

// Sequences of a microbatch, at most (model.cpp allows fewer): places in the stream of random numbers.
constexpr std::uint64_t kMostSequences = 1 << 24;

// A descriptor which closes itself; the map outlives it.
struct File {
  int descriptor;
  ~File() {
    if (descriptor >= 0) ::close(descriptor);
  }
};

std::size_t training_part(std::size_t bytes) {
  return bytes - bytes / 20;
}

}  // namespace

void Corpus::Unmap::operator()(const std::uint8_t* text) const {
  ::munmap(const_cast<std::uint8_t*>(text), bytes);
}

Corpus::Corpus(std::unique_ptr<const std::uint8_t, Unmap> map)
    : map_(std::move(map)), training_bytes_(training_part(map_.get_deleter().bytes)) {}

Result<Corpus> Corpus::open(const std::string& path, std::size_t context) {
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
  if (bytes / 20 <= context) {
    return fail(
        Errc::invalid_argument,
        "the text {} has {} bytes; a context of {} needs at least {}, because the last 5 % are kept for "
        "evaluation",
        path, bytes, context, 20 * (context + 1));
  }
  void* map = ::mmap(nullptr, bytes, PROT_READ, MAP_PRIVATE, file.descriptor, 0);
  if (map == MAP_FAILED) return fail(Errc::io, "cannot map the text {}: {}", path, std::strerror(errno));
  return Corpus({static_cast<const std::uint8_t*>(map), Unmap{bytes}});
}

Batch::Batch(BatchShape shape) : shape_(shape), tokens_(shape.rows()), targets_(shape.rows()) {}

void Batch::fill_at_random(std::span<const std::uint8_t> text, const MicrobatchPlace& place) {
  CHECK(text.size() > shape_.length, "the text must be longer than one sequence");
  const core::CounterRandom random(place.seed, "data", place.step, place.lane);
  const std::uint64_t starts = text.size() - shape_.length;
  for (std::size_t sequence = 0; sequence < shape_.batch; ++sequence) {
    // A file may be longer than 32 bits count.
    const std::uint64_t index = 2 * (place.microbatch * kMostSequences + sequence);
    const std::uint64_t draw = std::uint64_t{random.bits(index)} << 32 | random.bits(index + 1);
    copy(text, draw % starts, sequence);
  }
}

void Batch::fill_evenly(std::span<const std::uint8_t> text, std::size_t index, std::size_t count) {
  CHECK(text.size() > shape_.length && index < count,
        "the text must be longer than one sequence, and index < count");
  const std::size_t starts = text.size() - shape_.length;
  for (std::size_t sequence = 0; sequence < shape_.batch; ++sequence) {
    const std::size_t place = index * shape_.batch + sequence;
    copy(text, starts * place / (count * shape_.batch), sequence);
  }
}

void Batch::copy(std::span<const std::uint8_t> text, std::size_t start, std::size_t sequence) {
  for (std::size_t t = 0; t < shape_.length; ++t) {
    tokens_[sequence * shape_.length + t] = text[start + t];
    targets_[sequence * shape_.length + t] = text[start + t + 1];
  }
}

}  // namespace troupe::apps::gpt
