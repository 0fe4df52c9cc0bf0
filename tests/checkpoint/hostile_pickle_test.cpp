#include <gtest/gtest.h>

#include <string>
#include <utility>
#include <vector>

#include "tests/checkpoint/hostile.hpp"

namespace troupe::apps {
namespace {

constexpr std::size_t kPickleBytes = std::size_t{12} << 20;

/// A pickle of one opcode after the other, which never ends.
CraftedFiles opcodes(const char* name, std::string_view begin, std::string_view what,
                     std::string_view end = "") {
  return {name, [=] {
            std::string pickle = "\x80\x04";
            pickle += begin;
            pickle += repeated(what, kPickleBytes);
            return std::pair(pickle + std::string(end), std::string());
          }};
}

std::vector<CraftedFiles> pickles() {
  return {
      opcodes("EmptyLists", "", "]"),
      opcodes("EmptyListsAtTheLimit", "", "]N"),
      opcodes("DroppedLists", "", "]0"),
      opcodes("ListsOfOne", "", "]Na"),
      opcodes("Dicts", "", "}NNs"),
      opcodes("Calls", "N", ")R"),
      opcodes("States", "N", ")RNb"),
      opcodes("Marks", "", "("),
      opcodes("Nones", "", "N"),
      opcodes("Remembered", "N", "\x94"),
      opcodes("Recalled", "N\x94", std::string_view("h\0", 2)),
      opcodes("Tuples", "N", "\x85"),
      opcodes("PersistentIds", "N", "Q"),
      opcodes("Globals", "", "c\n\n0"),
      opcodes("SmallIntegers", "", "K\x01"),
      opcodes("EmptyTexts", "", std::string_view("\x8c\0", 2)),
      opcodes("OneLongList", "](", "N", "e."),
      opcodes("OneListItemByItem", "]", "Na", "."),
      opcodes("TwoListsByTurns", "]\x94]\x94", std::string_view("h\0Na0h\1Na0", 10)),
      opcodes("DeepTuples", "N", "\x85", "."),
  };
}

class HostilePickle : public testing::TestWithParam<CraftedFiles> {};

TEST_P(HostilePickle, TakesNoMoreThanAMultipleOfItsFiles) {
  expect_modest_dcp(GetParam());
}

INSTANTIATE_TEST_SUITE_P(All, HostilePickle, testing::ValuesIn(pickles()),
                         [](const auto& tested) { return std::string(tested.param.name); });

}  // namespace
}  // namespace troupe::apps
