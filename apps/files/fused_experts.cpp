#include "apps/files/fused_experts.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "apps/files/optimizer_names.hpp"
#include "core/errors.hpp"

namespace troupe::apps {

namespace {

using core::Errc;
using core::Result;
using core::Shape;

constexpr std::string_view kGateUp = "mlp.experts.gate_up_proj";
constexpr std::string_view kDown = "mlp.experts.down_proj";
constexpr std::string_view kRouter = "mlp.gate.weight";

/// The name of a parameter within a key, which may be that of its state.
struct Parameter {
  std::size_t begin = 0;
  std::string_view name;
};

Parameter parameter_of(std::string_view key) {
  for (const auto& state : {own_state(key), torch_state(key)}) {
    if (state) return {static_cast<std::size_t>(state->parameter.data() - key.data()), state->parameter};
  }
  return {0, key};
}

/// `key` with another name of its parameter.
std::string renamed(std::string_view key, const Parameter& parameter, std::string_view name) {
  std::string result(key);
  return result.replace(parameter.begin, parameter.name.size(), name);
}

/// A part of a fused tensor.
struct Piece {
  std::string name;  ///< of the parameter
  std::int64_t expert = 0;
  std::int64_t row = 0;
  std::int64_t rows = 0;
};

core::ManifestTensor sliced(const core::ManifestTensor& fused, std::string key, const Piece& piece) {
  const auto columns = fused.shape[2];
  core::ManifestTensor tensor{std::move(key), fused.dtype, {piece.rows, columns}, {}};
  const auto width = static_cast<std::int64_t>(core::size_of(fused.dtype));
  for (const auto& shard : fused.shards) {
    const auto& [offset, extent] = shard.box;
    const auto first = std::max(piece.row, offset[1]);
    const auto last = std::min(piece.row + piece.rows, offset[1] + extent[1]);
    if (piece.expert < offset[0] || piece.expert >= offset[0] + extent[0] || first >= last) continue;
    const auto before = ((piece.expert - offset[0]) * extent[1] + first - offset[1]) * extent[2] * width;
    const auto begin = shard.begin + static_cast<std::uint64_t>(before);
    const auto bytes = static_cast<std::uint64_t>((last - first) * extent[2] * width);
    tensor.shards.push_back(
        {{{first - piece.row, offset[2]}, {last - first, extent[2]}}, shard.file, begin, begin + bytes, 0});
  }
  return tensor;
}

class Splitter {
 public:
  Splitter(Source& source, ExpertNames names) : source_(source), names_(names) {}

  Result<void> split() {
    find_layers();
    if (layers_.empty()) return {};
    if (names_ == ExpertNames::automatic) names_ = likely_names();
    std::vector<core::ManifestTensor> tensors;
    for (auto& tensor : source_.manifest.tensors) {
      const auto pieces = pieces_of(tensor);
      if (pieces.empty()) {
        rename_router(tensor);
        tensors.push_back(std::move(tensor));
        continue;
      }
      std::vector<TorchPlace> places;
      const auto missed = source_.steps_missed.find(tensor.key);
      for (const auto& piece : pieces) {
        if (missed != source_.steps_missed.end()) source_.steps_missed.emplace(piece.name, missed->second);
        auto key = renamed(tensor.key, parameter_of(tensor.key), piece.name);
        places.push_back({key, {}, tensor.shape, {piece.expert, piece.row, 0}, {}});
        tensors.push_back(sliced(tensor, std::move(key), piece));
      }
      places_.emplace(tensor.key, std::move(places));
      source_.steps_missed.erase(tensor.key);
    }
    std::sort(tensors.begin(), tensors.end(), [](const auto& a, const auto& b) { return a.key < b.key; });
    const auto twice = std::adjacent_find(tensors.begin(), tensors.end(),
                                          [](const auto& a, const auto& b) { return a.key == b.key; });
    if (twice != tensors.end())
      return core::fail(Errc::invalid_argument,
                        "'{}' is there, and so are experts in one tensor, which have one of that name; "
                        "--fused-experts fused keeps them",
                        twice->key);
    source_.manifest.tensors = std::move(tensors);
    update_places();
    source_.notes.push_back(fmt::format(
        "the experts of {} layers, each in one tensor, are named one by one as files of {} have them; "
        "--fused-experts fused keeps them, or names others",
        layers_.size(), names_ == ExpertNames::mixtral ? "Mixtral" : "Qwen's models"));
    return {};
  }

 private:
  /// Layers whose two tensors have the shapes of this form; others use other forms under these names.
  void find_layers() {
    std::unordered_map<std::string, const core::ManifestTensor*> downs;
    for (const auto& tensor : source_.manifest.tensors) {
      if (tensor.key.ends_with(kDown) && tensor.shape.size() == 3 && core::is_floating(tensor.dtype))
        downs.emplace(tensor.key.substr(0, tensor.key.size() - kDown.size()), &tensor);
    }
    for (const auto& tensor : source_.manifest.tensors) {
      // What an optimizer keeps of them follows.
      if (!tensor.key.ends_with(kGateUp) || tensor.shape.size() != 3 || own_state(tensor.key)) continue;
      const auto layer = tensor.key.substr(0, tensor.key.size() - kGateUp.size());
      const auto down = downs.find(layer);
      if (down == downs.end()) continue;
      const auto& [experts, outputs, inputs] = std::tie(tensor.shape[0], tensor.shape[1], tensor.shape[2]);
      if (down->second->shape == Shape{experts, inputs, outputs / 2} && outputs % 2 == 0)
        layers_.push_back(layer);
    }
  }

  ExpertNames likely_names() const {
    const auto has = [&](std::string_view part) {
      return std::any_of(source_.manifest.tensors.begin(), source_.manifest.tensors.end(),
                         [&](const auto& tensor) { return tensor.key.find(part) != std::string::npos; });
    };
    return has(".q_norm.") || has("shared_expert") ? ExpertNames::qwen : ExpertNames::mixtral;
  }

  /// Whether a parameter, whose name may lack the container that the layer's has, is in one of the layers.
  bool is_of_layer(std::string_view name, std::string_view end) const {
    if (!name.ends_with(end)) return false;
    name.remove_suffix(end.size());
    return std::any_of(layers_.begin(), layers_.end(),
                       [&](const std::string& layer) { return layer.ends_with(name); });
  }

  std::vector<Piece> pieces_of(const core::ManifestTensor& tensor) const {
    const auto [begin, name] = parameter_of(tensor.key);
    const bool is_up = is_of_layer(name, kGateUp);
    if ((!is_up && !is_of_layer(name, kDown)) || tensor.shape.size() != 3) return {};
    const auto layer = name.substr(0, name.size() - (is_up ? kGateUp : kDown).size());
    const bool is_mixtral = names_ == ExpertNames::mixtral;
    const auto called = [&](std::int64_t expert, const char* mixtral, const char* qwen) {
      return fmt::format("{}{}.experts.{}.{}.weight", layer, is_mixtral ? "block_sparse_moe" : "mlp", expert,
                         is_mixtral ? mixtral : qwen);
    };
    std::vector<Piece> pieces;
    const auto rows = tensor.shape[1];
    for (std::int64_t expert = 0; expert < tensor.shape[0]; ++expert) {
      if (!is_up) {
        pieces.push_back({called(expert, "w2", "down_proj"), expert, 0, rows});
        continue;
      }
      pieces.push_back({called(expert, "w1", "gate_proj"), expert, 0, rows / 2});
      pieces.push_back({called(expert, "w3", "up_proj"), expert, rows / 2, rows / 2});
    }
    return pieces;
  }

  void rename_router(core::ManifestTensor& tensor) {
    const auto parameter = parameter_of(tensor.key);
    if (names_ != ExpertNames::mixtral || !is_of_layer(parameter.name, kRouter)) return;
    const auto layer = parameter.name.substr(0, parameter.name.size() - kRouter.size());
    auto key = renamed(tensor.key, parameter, std::string(layer) + "block_sparse_moe.gate.weight");
    places_.emplace(tensor.key, std::vector<TorchPlace>{{key, {}, {}, {}, {}}});
    if (auto missed = source_.steps_missed.extract(tensor.key)) {
      missed.key() = key;
      source_.steps_missed.insert(std::move(missed));
    }
    tensor.key = std::move(key);
  }

  void update_places() {
    if (!source_.torch) return;
    std::vector<TorchPlace> places;
    for (auto& place : source_.torch->tensors) {
      const auto found = places_.find(place.key);
      if (found == places_.end()) {
        places.push_back(std::move(place));
        continue;
      }
      for (auto& piece : found->second) {
        piece.path = place.path;
        places.push_back(std::move(piece));
      }
    }
    source_.torch->tensors = std::move(places);
    std::vector<std::string> added;
    for (const auto& key : source_.torch->added) {
      const auto found = places_.find(key);
      if (found == places_.end()) added.push_back(key);
      if (found == places_.end()) continue;
      for (const auto& piece : found->second) added.push_back(piece.key);
    }
    source_.torch->added = std::move(added);
  }

  Source& source_;
  ExpertNames names_;
  std::vector<std::string> layers_;                                  ///< what their names begin with
  std::unordered_map<std::string, std::vector<TorchPlace>> places_;  ///< of what gets other names
};

}  // namespace

Result<void> split_fused_experts(Source& source, ExpertNames names) {
  return names == ExpertNames::fused ? Result<void>() : Splitter(source, names).split();
}

}  // namespace troupe::apps
