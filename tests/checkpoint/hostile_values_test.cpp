#include <gtest/gtest.h>

#include <string>
#include <utility>
#include <vector>

#include "tests/checkpoint/hostile.hpp"

namespace troupe::apps {
namespace {

/// A checkpoint of items whose values are this archive, each with a place of its own or all with one.
CraftedFiles items_of(const char* name, std::size_t count, bool share_place,
                      std::function<void(core::PickleWriter&)> write,
                      std::function<void(CraftedDcp&, std::size_t)> path = {}) {
  return {name, [=] {
            const std::string archive = torch_archive_of(write);
            std::string data;
            for (std::size_t i = 0; i < (share_place ? 1 : count); ++i) data += archive;
            auto metadata = CraftedDcp::metadata(
                [&](CraftedDcp& dcp) {
                  for (std::size_t i = 0; i < count; ++i) {
                    dcp.pickle.text(key_of(i));
                    dcp.item();
                  }
                },
                [&](CraftedDcp& dcp) {
                  for (std::size_t i = 0; i < count; ++i)
                    dcp.stored(key_of(i), nullptr, share_place ? 0 : i * archive.size(), archive.size());
                },
                [&](CraftedDcp& dcp) {
                  for (std::size_t i = 0; i < count && path; ++i) {
                    dcp.pickle.text(key_of(i));
                    path(dcp, i);
                  }
                });
            return std::pair(std::move(metadata), std::move(data));
          }};
}

void deep_path(CraftedDcp& dcp, std::size_t) {
  dcp.pickle.mark();
  for (int i = 0; i < 200'000; ++i) dcp.pickle.text("a");
  dcp.pickle.tuple(200'000);
}

void long_path(CraftedDcp& dcp, std::size_t i) {
  static std::uint32_t text = 0;
  dcp.pickle.mark();
  for (int level = 0; level < 50; ++level) {
    if (i == 0 && level == 0) {
      dcp.pickle.text(std::string(1'000'000, 'p'));
      text = dcp.pickle.remember();
    } else {
      dcp.pickle.recall(text);
    }
  }
  dcp.pickle.text(key_of(i));
  dcp.pickle.tuple(51);
}

void shared_text(core::PickleWriter& pickle) {
  pickle.text(std::string(1'000'000, '\x01'));
  const auto text = pickle.remember();
  pickle.empty_list();
  pickle.mark();
  for (int i = 0; i < 10'000; ++i) pickle.recall(text);
  pickle.append_all();
  pickle.tuple(2);
}

void shared_bytes(core::PickleWriter& pickle) {
  pickle.bytes(std::vector<std::byte>(1'000'000, std::byte{0xff}));
  const auto bytes = pickle.remember();
  pickle.empty_list();
  pickle.mark();
  for (int i = 0; i < 10'000; ++i) pickle.recall(bytes);
  pickle.append_all();
  pickle.tuple(2);
}

void shared_lists(core::PickleWriter& pickle) {
  pickle.tuple(0);
  for (int i = 0; i < 60; ++i) {
    const auto before = pickle.remember();
    pickle.recall(before);
    pickle.tuple(2);
  }
}

void reals(core::PickleWriter& pickle) {
  pickle.real(0.5);
  const auto half = pickle.remember();
  pickle.empty_list();
  pickle.mark();
  for (int i = 0; i < 4'000'000; ++i) pickle.recall(half);
  pickle.append_all();
  pickle.tuple(2);
}

// What a small file may hold at most, in the form that takes most as text.
void few_reals(core::PickleWriter& pickle) {
  pickle.real(0.5);
  const auto half = pickle.remember();
  pickle.empty_list();
  pickle.mark();
  for (int i = 0; i < 1'000'000; ++i) pickle.recall(half);
  pickle.append_all();
  pickle.tuple(2);
}

void long_keys(core::PickleWriter& pickle) {
  for (int level = 0; level < 50; ++level) {
    pickle.empty_dict();
    pickle.mark();
    pickle.text(std::string(100'000, 'p'));
  }
  pickle.empty_dict();
  pickle.mark();
  for (std::size_t i = 0; i < 10'000; ++i) {
    pickle.text(key_of(i));
    pickle.none();
  }
  for (int level = 0; level < 51; ++level) pickle.set_all();
}

void flat(CraftedDcp& dcp, std::size_t i) {
  dcp.pickle.text(key_of(i));
  dcp.pickle.tuple(1);
}

void small(core::PickleWriter& pickle) {
  pickle.integer(1);
}

std::vector<CraftedFiles> values() {
  return {
      items_of("AVeryDeepPath", 1, false, small, deep_path),
      items_of("APathOfLongKeys", 1000, false, small, long_path),
      items_of("ManyItems", 40'000, false, small, flat),
      items_of("ManyItemsAtOnePlace", 60'000, true, small, flat),
      items_of("ALargeItemForMany", 20'000, true, few_reals, flat),
      items_of("ATextMeantOften", 1, false, shared_text),
      items_of("BytesMeantOften", 1, false, shared_bytes),
      items_of("ListsInListsTwice", 1, false, shared_lists),
      items_of("RealsMeantOften", 1, false, reals),
      items_of("AMillionReals", 1, false, few_reals),
      items_of("LeavesBelowLongKeys", 1, false, long_keys),
  };
}

class HostileValues : public testing::TestWithParam<CraftedFiles> {};

TEST_P(HostileValues, TakesNoMoreThanAMultipleOfItsFiles) {
  expect_modest_dcp(GetParam());
}

INSTANTIATE_TEST_SUITE_P(All, HostileValues, testing::ValuesIn(values()),
                         [](const auto& tested) { return std::string(tested.param.name); });

}  // namespace
}  // namespace troupe::apps
