#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "core/ids.hpp"
#include "core/result.hpp"

namespace troupe::core {

/// Sizes of the parallel axes. The job has tp * cp * dp * pp ranks. Experts fold the tp * cp * dp ranks of a
/// pipeline stage into etp * ep * edp, where edp follows from the others.
struct MeshSizes {
  int tp = 1;   ///< tensor parallel
  int cp = 1;   ///< context parallel
  int ep = 1;   ///< expert parallel
  int dp = 1;   ///< data parallel
  int pp = 1;   ///< pipeline parallel
  int etp = 0;  ///< tensor parallel of experts; 0 means the same as tp
  /// Copies of the sharded optimizer: the dp_cp ranks are cut into this many contiguous chunks.
  int optimizer_instances = 1;

  friend bool operator==(const MeshSizes&, const MeshSizes&) = default;
};

/// Process groups, with Megatron-Core's names.
enum class GroupKind : std::uint8_t {
  world,
  tp,
  cp,
  dp,
  pp,
  dp_cp,
  tp_pp,
  tp_dp_cp,
  embd,      ///< first and last pipeline stage
  pos_embd,  ///< first pipeline stage
  ep,
  etp,
  edp,
  intra_dp_cp,     ///< the chunk of dp_cp that shares one copy of the optimizer
  intra_edp,       ///< like intra_dp_cp, for experts
  inter_instance,  ///< the same position in all chunks; the same ranks for dense parameters and experts
};
inline constexpr std::size_t kGroupKinds = 16;
std::string_view name_of(GroupKind kind) noexcept;

/// The coordinates of every rank. Ranks are numbered with the first axis of `order` changing fastest; the
/// expert axes replace the dense ones (etp replaces tp).
class Mesh {
 public:
  static constexpr std::string_view kDefaultOrder = "tp-cp-ep-dp-pp";

  /// Errc::invalid_argument names the axis and the sizes that do not match.
  static Result<Mesh> create(MeshSizes sizes, std::string_view order = kDefaultOrder);

  const MeshSizes& sizes() const { return sizes_; }
  int edp() const { return edp_; }
  WorldSize world() const { return world_; }
  /// The size of the groups of this kind (of those that exist).
  int group_size(GroupKind kind) const;

  /// The group of this kind that contains `rank`, in group order. Empty if there is none: only the embedding
  /// groups leave ranks out.
  std::vector<Rank> group(GroupKind kind, Rank rank) const;
  /// The place of `rank` in that group, and the group's first rank, without a look at the others where the
  /// group goes along axes. The rank must be in a group of this kind.
  int place_in_group(GroupKind kind, Rank rank) const;
  Rank first_of_group(GroupKind kind, Rank rank) const;
  /// All groups of this kind, ordered by their first rank.
  std::vector<std::vector<Rank>> groups(GroupKind kind) const;

 private:
  enum Axis : std::uint8_t { tp, cp, ep, dp, pp };
  struct Span {
    int size = 1;
    int stride = 1;
  };
  /// For each axis, how ranks are numbered along it.
  using Numbering = std::array<Span, 5>;

  static Numbering number(const std::array<Axis, 5>& order, const std::array<int, 5>& sizes);
  static Result<std::array<Axis, 5>> parse_order(std::string_view order);
  /// Axes that a group goes along, those that change fastest first.
  struct Line {
    std::array<Span, 5> axes{};
    std::size_t count = 0;

    int size() const;
    int place_of(Rank rank) const;
    Rank first(Rank rank) const;
    Rank at(Rank first, int place) const;
  };
  static Line line(const Numbering& numbering, std::initializer_list<Axis> axes);
  /// None for groups that do not go along axes. A group may be a part of it.
  std::optional<Line> line_of(GroupKind kind) const;
  static std::vector<Rank> along(const Line& line, Rank rank);
  std::vector<Rank> instance_chunk(const Line& line, Rank rank) const;
  std::vector<Rank> same_place_in_chunks(const Line& line, Rank rank) const;
  std::vector<Rank> pipeline_ends(Rank rank, bool with_last) const;

  MeshSizes sizes_;
  int edp_ = 1;
  WorldSize world_{1};
  Numbering dense_{};
  Numbering expert_{};
};

}  // namespace troupe::core
