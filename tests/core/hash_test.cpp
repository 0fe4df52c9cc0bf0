#include "core/hash.hpp"

#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

namespace troupe::core {
namespace {

std::vector<std::byte> pattern(std::size_t count) {
  std::vector<std::byte> bytes(count);
  for (std::size_t i = 0; i < count; ++i) bytes[i] = static_cast<std::byte>(i * 7 % 251);
  return bytes;
}

struct Published {
  std::size_t bytes;
  std::uint64_t hash;
};

/// Hashes of pattern(), as the Python package xxhash 4.1.0 computes them, on both sides of each length at
/// which xxHash3 changes its algorithm.
constexpr Published kPublished[] = {
    {0, 0x2d06800538d394c2},    {1, 0xc44bdff4074eecdb},   {4, 0xd3d60c1519014e89},
    {16, 0x9da23836adf2be1e},   {17, 0xf34c3c9cf5a112d1},  {128, 0x4c659b745f435148},
    {240, 0xd6dfbf67b0675b54},  {241, 0xc614c8c3575348c1}, {1000, 0xd1eb8367bf3294e7},
    {5000, 0xce29a19460ee1bfc},
};

TEST(Hash, OfNothingIsThePublishedConstantOfXxHash3) {
  EXPECT_EQ(hash64(std::string_view{}), 0x2d06800538d394c2ULL);
}

TEST(Hash, DependsOnContentAndSeed) {
  const std::string text = "plan";

  EXPECT_EQ(hash64(text), hash64(std::as_bytes(std::span(text))));
  EXPECT_NE(hash64("plan"), hash64("plam"));
  EXPECT_NE(hash64("plan"), hash64("plan", 1));
}

TEST(Hash, IsWhatAnotherImplementationComputes) {
  for (const auto& [bytes, hash] : kPublished) EXPECT_EQ(hash64(pattern(bytes)), hash) << bytes;
}

TEST(HashStream, OfPiecesIsTheHashOfTheWhole) {
  for (const auto& [bytes, hash] : kPublished) {
    HashStream stream;
    const auto whole = pattern(bytes);

    for (std::size_t at = 0; at < bytes; at += 3)
      stream.add(std::span(whole).subspan(at, std::min<std::size_t>(3, bytes - at)));

    EXPECT_EQ(stream.value(), hash) << bytes;
  }
}

RC_GTEST_PROP(HashStream, DoesNotDependOnThePieces, (const std::vector<std::uint8_t>& sizes)) {
  HashStream stream;
  std::size_t total = 0;
  for (auto size : sizes) total += size;
  const auto whole = pattern(total);

  std::size_t at = 0;
  for (auto size : sizes) {
    stream.add(std::span(whole).subspan(at, size));
    at += size;
  }

  RC_ASSERT(stream.value() == hash64(whole));
}

TEST(HashStream, GoesOnAfterItsValueOrAMove) {
  const auto whole = pattern(1000);
  HashStream stream;

  stream.add(std::span(whole).first(240));
  const auto early = stream.value();
  HashStream moved = std::move(stream);
  moved.add(std::span(whole).subspan(240));

  EXPECT_EQ(early, 0xd6dfbf67b0675b54);
  EXPECT_EQ(moved.value(), 0xd1eb8367bf3294e7);
}

TEST(HashStream, BeginsAnewAfterAReset) {
  HashStream stream;
  stream.add(pattern(300));

  stream.reset();

  EXPECT_EQ(stream.value(), 0x2d06800538d394c2);
}

}  // namespace
}  // namespace troupe::core
