#if defined(__x86_64__)
#include <emmintrin.h>
#endif

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "gpu/copy_out.hpp"
#include "gpu/kernel_checks.hpp"

namespace troupe::gpu {
namespace {

constexpr std::size_t kLine = 64;
constexpr std::size_t kPage = 4096;
/// Copied side by side: a core does not fill memory's bandwidth with one stream of lines.
constexpr std::size_t kPages = 4;

#if defined(__x86_64__)
/// `to` is aligned to lines.
void copy_line(const std::byte* from, std::byte* to) {
  const auto* source = reinterpret_cast<const __m128i*>(from);
  auto* destination = reinterpret_cast<__m128i*>(to);
  const __m128i first = _mm_loadu_si128(source), second = _mm_loadu_si128(source + 1);
  const __m128i third = _mm_loadu_si128(source + 2), fourth = _mm_loadu_si128(source + 3);
  _mm_stream_si128(destination, first);
  _mm_stream_si128(destination + 1, second);
  _mm_stream_si128(destination + 2, third);
  _mm_stream_si128(destination + 3, fourth);
}

void fence() {
  _mm_sfence();
}
#else
void copy_line(const std::byte* from, std::byte* to) {
  std::memcpy(to, from, kLine);
}

void fence() {}
#endif

}  // namespace

void copy_out(ConstBufferView source, BufferView destination) {
  check_copy(source, destination);
  const std::byte* from = source.data;
  std::byte* to = destination.data;
  std::size_t left = source.bytes;
  const auto copy_plainly = [&](std::size_t bytes) {
    if (bytes > 0) std::memcpy(to, from, bytes);
    from += bytes;
    to += bytes;
    left -= bytes;
  };
  copy_plainly(std::min(left, (kLine - reinterpret_cast<std::uintptr_t>(to) % kLine) % kLine));
  while (left >= kPages * kPage) {
    for (std::size_t at = 0; at < kPage; at += kLine) {
      for (std::size_t page = 0; page < kPages * kPage; page += kPage) {
        __builtin_prefetch(from + page + std::min(at + 4 * kLine, kPage - kLine));
        copy_line(from + page + at, to + page + at);
      }
    }
    from += kPages * kPage;
    to += kPages * kPage;
    left -= kPages * kPage;
  }
  fence();
  copy_plainly(left);
}

}  // namespace troupe::gpu
