#include <fmt/format.h>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <ctime>
#include <iterator>
#include <nlohmann/json.hpp>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "core/boxes/box.hpp"
#include "core/checkpoint/manifest.hpp"
#include "core/checkpoint/save_plan.hpp"
#include "core/errors.hpp"
#include "core/hash.hpp"
#include "core/layout/buffer_layout.hpp"

namespace troupe::apps {
namespace {

using core::SaveStructure;
using core::Shape;

constexpr std::int64_t kHidden = 2304;
constexpr std::int64_t kVocabulary = 50304;
constexpr int kLayers = 111;
constexpr std::int64_t kBuckets = 50;
constexpr const char* kStates[] = {"", ".exp_avg", ".exp_avg_sq"};

struct Parameter {
  std::string key;
  Shape shape;
};

/// 2,000 parameters with 7.3e9 elements: matrices and vectors like a transformer's.
std::vector<Parameter> transformer() {
  const std::int64_t h = kHidden;
  std::vector<Parameter> parameters{{"embedding.weight", {kVocabulary, h}}};
  for (int layer = 0; layer < kLayers; ++layer) {
    auto add = [&](const char* name, Shape shape) {
      parameters.push_back({fmt::format("layers.{}.{}", layer, name), std::move(shape)});
    };
    for (const char* norm : {"norm_1", "norm_2"}) {
      add(fmt::format("{}.weight", norm).c_str(), {h});
      add(fmt::format("{}.bias", norm).c_str(), {h});
    }
    for (const char* map : {"query", "key", "value", "projection"}) {
      add(fmt::format("attention.{}.weight", map).c_str(), {h, h});
      add(fmt::format("attention.{}.bias", map).c_str(), {h});
    }
    add("attention.query_norm.weight", {h});
    add("attention.key_norm.weight", {h});
    add("mlp.up.weight", {4 * h, h});
    add("mlp.up.bias", {4 * h});
    add("mlp.down.weight", {h, 4 * h});
    add("mlp.down.bias", {h});
  }
  parameters.push_back({"output.weight", {kVocabulary, h}});
  return parameters;
}

core::Result<core::BufferLayout> layout_of(const std::vector<Parameter>& parameters, int ranks) {
  std::vector<core::LayoutParameter> sizes;
  std::int64_t elements = 0;
  for (const auto& parameter : parameters) {
    sizes.push_back({.elements = core::elements_of(parameter.shape)});
    elements += sizes.back().elements;
  }
  return core::padded_layout(sizes, {.bucket_size = elements / kBuckets, .shards = ranks});
}

/// What each rank holds under ZeRO-1: its slice of every parameter, three times.
std::vector<SaveStructure> sharded(const std::vector<Parameter>& parameters,
                                   const core::BufferLayout& layout) {
  std::vector<SaveStructure> structures(static_cast<std::size_t>(layout.shards));
  for (int rank = 0; rank < layout.shards; ++rank) {
    auto& structure = structures[static_cast<std::size_t>(rank)];
    for (std::size_t i = 0; i < parameters.size(); ++i) {
      const auto owned = core::ownership(layout, static_cast<int>(i), rank);
      if (!owned) continue;
      const auto boxes = core::boxes_of_range(parameters[i].shape, owned->in_parameter);
      for (const char* state : kStates) {
        const auto tensor = static_cast<std::uint32_t>(structure.tensors.size());
        structure.tensors.push_back({parameters[i].key + state, core::DType::f32, parameters[i].shape});
        for (const auto& box : boxes) structure.pieces.push_back({tensor, box});
      }
    }
  }
  return structures;
}

/// What every rank holds under DDP: everything.
SaveStructure replicated(const std::vector<Parameter>& parameters) {
  SaveStructure structure;
  for (const auto& parameter : parameters) {
    for (const char* state : kStates) {
      const auto tensor = static_cast<std::uint32_t>(structure.tensors.size());
      structure.tensors.push_back({parameter.key + state, core::DType::f32, parameter.shape});
      structure.pieces.push_back({tensor, core::Box::whole(parameter.shape)});
    }
  }
  return structure;
}

/// Processor seconds of each part of planning a save, in the order in which they happen: time that others use
/// on the machine does not count.
class Timetable {
 public:
  template <class Work>
  auto measure(const char* part, Work&& work) {
    const std::clock_t begin = std::clock();
    auto result = work();
    const double taken = static_cast<double>(std::clock() - begin) / CLOCKS_PER_SEC;
    seconds_[part] = taken;
    total_ += taken;
    return result;
  }
  const nlohmann::ordered_json& seconds() const { return seconds_; }
  double total() const { return total_; }

 private:
  nlohmann::ordered_json seconds_;
  double total_ = 0;
};

/// From what the ranks hold to a manifest's bytes and back. Only the hashes of the data are made up. Ranks
/// with the same structure, as shown by its hash, send it once.
core::Result<nlohmann::ordered_json> measure(const std::string& form,
                                             const std::vector<const SaveStructure*>& held) {
  Timetable times;
  std::vector<const SaveStructure*> distinct = held;
  distinct.erase(std::unique(distinct.begin(), distinct.end()), distinct.end());
  const auto sent = times.measure("structures", [&] {
    std::vector<std::string> texts;
    for (const auto* structure : distinct) texts.push_back(core::to_text(*structure));
    return texts;
  });
  const auto received = times.measure("parse", [&] {
    std::vector<SaveStructure> parsed;
    for (const auto& text : sent) parsed.push_back(core::parse_structure(text).value());
    return parsed;
  });
  std::vector<const SaveStructure*> structures;
  for (std::size_t rank = 0; rank < held.size(); ++rank)
    structures.push_back(&received[distinct.size() == 1 ? 0 : rank]);
  const auto plan = TRY(times.measure("plan_save", [&] { return core::plan_save(structures); }));
  const auto written = times.measure("plan_files", [&] {
    std::vector<core::WrittenShards> shards(structures.size());
    for (std::size_t rank = 0; rank < structures.size(); ++rank) {
      for (const auto& file : core::plan_files(*structures[rank], plan.assigned[rank],
                                               core::Rank{static_cast<std::int32_t>(rank)})) {
        for (const auto& shard : file.shards) shards[rank].hashes.push_back(shard.begin * 0x9e3779b97f4a7c15);
      }
    }
    return shards;
  });
  auto manifest = times.measure("manifest_of", [&] { return core::manifest_of(structures, plan, written); });
  manifest.save = core::hex64(1);
  const auto text = times.measure("to_text", [&] { return core::to_text(manifest); });
  const auto parsed = TRY(times.measure("parse_manifest", [&] { return core::parse_manifest(text); }));
  if (parsed != manifest) return core::fail(core::Errc::internal, "the manifest changed on its way");
  std::size_t shards = 0;
  for (const auto& tensor : manifest.tensors) shards += tensor.shards.size();
  return nlohmann::ordered_json{{"form", form},
                                {"ranks", structures.size()},
                                {"tensors", manifest.tensors.size()},
                                {"shards", shards},
                                {"tensor_bytes", manifest.tensor_bytes()},
                                {"manifest_bytes", text.size()},
                                {"seconds", times.seconds()},
                                {"total_seconds", times.total()}};
}

void print_row(const nlohmann::ordered_json& row) {
  fmt::print("{:>6} {:>5} ranks {:>7} shards {:>6.1f} MB manifest", row["form"].get<std::string>(),
             row["ranks"].get<int>(), row["shards"].get<int>(), row["manifest_bytes"].get<double>() / 1e6);
  for (const auto& [part, seconds] : row["seconds"].items()) {
    fmt::print("  {} {:.3f}", part, seconds.get<double>());
  }
  fmt::print("  total {:.3f} s\n", row["total_seconds"].get<double>());
  std::fflush(stdout);
}

core::Result<void> run(bool json) {
  const auto parameters = transformer();
  const auto everything = replicated(parameters);
  auto rows = nlohmann::ordered_json::array();
  for (const int ranks : {64, 256, 1024}) {
    const auto shares = sharded(parameters, TRY(layout_of(parameters, ranks)));
    std::vector<const SaveStructure*> views;
    for (const auto& share : shares) views.push_back(&share);
    rows.push_back(TRY(measure("ZeRO-1", views)));
    if (!json) print_row(rows.back());
    rows.push_back(
        TRY(measure("DDP", std::vector<const SaveStructure*>(static_cast<std::size_t>(ranks), &everything))));
    if (!json) print_row(rows.back());
  }
  if (json) fmt::print("{}\n", rows.dump());
  return {};
}

}  // namespace
}  // namespace troupe::apps

/// Prints how much processor time planning a checkpoint of 2,000 parameters and their two moments takes.
int main(int argc, char** argv) {
  const auto done = troupe::apps::run(argc > 1 && std::string_view(argv[1]) == "--json");
  if (done) return 0;
  fmt::print(stderr, "{}\n", done.error().message);
  return 1;
}
