#include <gtest/gtest.h>

#include <string>
#include <utility>
#include <vector>

#include "tests/checkpoint/hostile.hpp"

namespace troupe::apps {
namespace {

CraftedFiles metadata_of(const char* name, CraftedDcp::Fill entries, CraftedDcp::Fill storage = {},
                         CraftedDcp::Fill planner = {}) {
  return {name, [=] {
            const CraftedDcp::Fill nothing = [](CraftedDcp&) {};
            return std::pair(CraftedDcp::metadata(entries ? entries : nothing, storage ? storage : nothing,
                                                  planner ? planner : nothing),
                             std::string());
          }};
}

const std::vector<std::int64_t> kZeros(64, 0);

void unknown(CraftedDcp& dcp) {
  dcp.pickle.text("first");
  dcp.pickle.global(std::string(1'000'000, 'm'), std::string(1'000'000, 'c'));
  const auto described = dcp.pickle.remember();
  for (std::size_t i = 0; i < 100'000; ++i) {
    dcp.pickle.text(key_of(i));
    dcp.pickle.recall(described);
  }
}

void empty_tensors(CraftedDcp& dcp) {
  dcp.pickle.text("first");
  dcp.tensor(kZeros, [](CraftedDcp& inner) {
    for (int i = 0; i < 20'000; ++i) inner.chunk({0}, {0});
  });
  const auto tensor = dcp.pickle.remember();
  for (std::size_t i = 0; i < 100'000; ++i) {
    dcp.pickle.text(key_of(i));
    dcp.pickle.recall(tensor);
  }
}

void tensors_of_many_axes(CraftedDcp& dcp) {
  dcp.pickle.text("first");
  dcp.tensor(kZeros, [](CraftedDcp&) {});
  const auto tensor = dcp.pickle.remember();
  for (std::size_t i = 0; i < 500'000; ++i) {
    dcp.pickle.text(key_of(i));
    dcp.pickle.recall(tensor);
  }
}

void one_chunk_often(CraftedDcp& dcp) {
  dcp.pickle.text("t");
  dcp.tensor(std::vector<std::int64_t>(58, 2), [](CraftedDcp& inner) {
    inner.chunk(std::vector<std::int64_t>(58, 0), std::vector<std::int64_t>(58, 1));
    const auto chunk = inner.pickle.remember();
    for (int i = 0; i < 500'000; ++i) inner.pickle.recall(chunk);
  });
}

void its_place(CraftedDcp& dcp) {
  const std::vector<std::int64_t> offset(58, 0);
  dcp.stored("t", &offset, 0, 8);
}

void one_place_often(CraftedDcp& dcp) {
  dcp.object("MetadataIndex", [](CraftedDcp& inner) {
    inner.pickle.text("fqn");
    inner.pickle.text(std::string(2000, 'k'));
    inner.pickle.text("offset");
    inner.size(kZeros);
  });
  const auto index = dcp.pickle.remember();
  dcp.object("torch.distributed.checkpoint.filesystem", "_StorageInfo", [](CraftedDcp& inner) {
    for (const char* name : {"offset", "length"}) {
      inner.pickle.text(name);
      inner.pickle.integer(1);
    }
    inner.pickle.text("relative_path");
    inner.pickle.text("__0_0.distcp");
  });
  const auto info = dcp.pickle.remember();
  for (int i = 0; i < 1'000'000; ++i) {
    dcp.pickle.recall(index);
    dcp.pickle.recall(info);
  }
}

void large_state(CraftedDcp& dcp) {
  dcp.pickle.global(kDcpModule, "MetadataIndex");
  dcp.pickle.tuple(0);
  dcp.pickle.new_object();
  dcp.dict([](CraftedDcp& inner) {
    inner.pickle.text("fqn");
    inner.pickle.text("a");
    for (std::size_t i = 0; i < 100'000; ++i) {
      inner.pickle.text(key_of(i));
      inner.pickle.none();
    }
  });
  const auto state = dcp.pickle.remember();
  dcp.pickle.build();
  dcp.object_with("_StorageInfo", state);
  for (int i = 0; i < 100'000; ++i) {
    dcp.object_with("MetadataIndex", state);
    dcp.object_with("_StorageInfo", state);
  }
}

// Each box is cut along ten axes, so that it has 1024 corners.
void many_corners(CraftedDcp& dcp) {
  dcp.pickle.text("t");
  dcp.tensor({1000, 30, 2, 2, 2, 2, 2, 2, 2, 2}, [](CraftedDcp& inner) {
    for (std::int64_t i = 0; i < 30'000; ++i) {
      std::vector<std::int64_t> offset(10, 0);
      offset[0] = i % 1000;
      offset[1] = i / 1000;
      inner.chunk(offset, std::vector<std::int64_t>(10, 1));
    }
  });
}

void their_places(CraftedDcp& dcp) {
  for (std::int64_t i = 0; i < 30'000; ++i) {
    std::vector<std::int64_t> offset(10, 0);
    offset[0] = i % 1000;
    offset[1] = i / 1000;
    dcp.stored("t", &offset, 0, 8);
  }
}

std::vector<CraftedFiles> shared_metadata() {
  return {
      metadata_of("UnknownClassesOfLongNames", unknown),
      metadata_of("ManyTensorsOfManyEmptyChunks", empty_tensors),
      metadata_of("TensorsOfManyAxes", tensors_of_many_axes),
      metadata_of("OneChunkVeryOften", one_chunk_often, its_place),
      metadata_of("OnePlaceVeryOften", {}, one_place_often),
      metadata_of("AttributesInALargeState", {}, large_state),
      metadata_of("BoxesOfManyCorners", many_corners, their_places),
  };
}

class HostileMetadata : public testing::TestWithParam<CraftedFiles> {};

TEST_P(HostileMetadata, TakesNoMoreThanAMultipleOfItsFiles) {
  expect_modest_dcp(GetParam());
}

INSTANTIATE_TEST_SUITE_P(All, HostileMetadata, testing::ValuesIn(shared_metadata()),
                         [](const auto& tested) { return std::string(tested.param.name); });

}  // namespace
}  // namespace troupe::apps
