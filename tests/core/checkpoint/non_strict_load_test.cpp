#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>

#include "core/boxes/integrity.hpp"
#include "core/state/state_parts.hpp"
#include "core/state/strictness.hpp"
#include "tests/core/checkpoint/state_samples.hpp"

namespace troupe::core {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using Map = StateNode::Map;
using List = StateNode::List;

constexpr std::array kModes{
    Strictness::assume_ok_unexpected, Strictness::log_unexpected, Strictness::log_all,
    Strictness::raise_unexpected,     Strictness::raise_all,      Strictness::return_unexpected,
    Strictness::return_all,           Strictness::ignore_all};

const KeySet kCheckpoint{"TenA", "TenB", "TenC", "ObjA", "ObjB", "common_state"};

Map exact() {
  return {{"TenA", tensor("TenA")},
          {"TenB", tensor("TenB")},
          {"TenC", tensor("TenC")},
          {"ObjA", object("ObjA")},
          {"ObjB", object("ObjB")}};
}

/// The request after the verdict, and the verdict.
std::pair<StateNode, StrictnessVerdict> judged(Strictness mode, const Map& request) {
  auto parts = split_for_load(request).value();
  const std::vector<KeySet> requests{keys_of(parts.sharded)};
  auto verdict = judge_keys(mode, requests, kCheckpoint);
  drop_keys(parts, verdict.dropped[0]);
  return {std::move(parts.sharded), std::move(verdict)};
}

TEST(NonStrictLoad, AnExactRequestIsReadInAllModes) {
  for (const Strictness mode : kModes) {
    const auto [request, verdict] = judged(mode, exact());

    EXPECT_EQ(request, StateNode(exact())) << name_of(mode);
    EXPECT_FALSE(verdict.warning || verdict.error);
  }
}

TEST(NonStrictLoad, UnexpectedEntriesAreDroppedAndReported) {
  Map unexpected = exact();
  unexpected.set("UnexpectedTenD", tensor("UnexpectedTenD")).set("UnexpectedObjD", object("UnexpectedObjD"));

  for (const Strictness mode : kModes) {
    const auto [request, verdict] = judged(mode, unexpected);

    const bool looks = mode != Strictness::assume_ok_unexpected;
    EXPECT_EQ(request, StateNode(looks ? exact() : unexpected)) << name_of(mode);
  }
  const auto returned = judged(Strictness::return_all, unexpected).second;
  EXPECT_EQ(returned.unexpected[0], (KeySet{"UnexpectedTenD", "UnexpectedObjD"}));
  EXPECT_TRUE(returned.missing.empty());
}

TEST(NonStrictLoad, MissingEntriesAreReported) {
  Map request = exact();
  std::erase_if(request.entries(),
                [](const auto& entry) { return entry.key == Key("TenA") || entry.key == Key("ObjB"); });

  const auto [read, verdict] = judged(Strictness::return_all, request);

  EXPECT_EQ(read, StateNode(request));
  EXPECT_EQ(verdict.missing, (KeySet{"TenA", "ObjB"}));
  EXPECT_TRUE(verdict.unexpected[0].empty());
}

TEST(NonStrictLoad, NestedUnexpectedEntriesLeaveTheirMaps) {
  Map request = exact();
  request.set("UnexpectedNested", Map{{"inner", tensor("UnexpectedNested.UnexpectedTenF")}});
  request.set("NestedEmpty", Map{{"deep", List{object("NestedEmpty.UnexpectedObjH")}}});

  const auto [read, verdict] = judged(Strictness::log_all, request);

  Map expected = exact();
  expected.set("UnexpectedNested", Map{}).set("NestedEmpty", Map{{"deep", Map{}}});
  EXPECT_EQ(read, StateNode(expected));
  EXPECT_THAT(verdict.warning.value(),
              AllOf(HasSubstr("UnexpectedNested.UnexpectedTenF"), HasSubstr("NestedEmpty.UnexpectedObjH")));
}

TEST(NonStrictLoad, RanksThatAskForDifferentKeysAreStoppedBeforeTheyExchange) {
  std::vector<RankShards> ranks(8);
  for (auto& rank : ranks) rank.tensors = {tensor("TenA").tensor, tensor("TenB").tensor};
  ranks[3].tensors.pop_back();

  const auto verdict = check_same_keys(ranks);

  EXPECT_EQ(verdict.error().code, Errc::mismatch);
  EXPECT_THAT(verdict.error().message, HasSubstr("'TenB' (on 7 of 8 ranks)"));
}

}  // namespace
}  // namespace troupe::core
