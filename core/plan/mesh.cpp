#include "core/plan/mesh.hpp"

#include <algorithm>

#include "core/enum_names.hpp"
#include "core/errors.hpp"

namespace troupe::core {
namespace {

constexpr int kMostRanks = 1 << 20;

constexpr auto kGroupNames =
    enum_names<GroupKind>("world", "tp", "cp", "dp", "pp", "dp_cp", "tp_pp", "tp_dp_cp", "embd", "pos_embd",
                          "ep", "etp", "edp", "intra_dp_cp", "intra_edp", "inter_instance");

constexpr std::array<std::string_view, 5> kAxisNames{"tp", "cp", "ep", "dp", "pp"};

Result<void> check_positive(std::string_view axis, int size) {
  if (size >= 1 && size <= kMostRanks) return {};
  return fail(Errc::invalid_argument, "the size of axis {} is 1 to {}, not {}", axis, kMostRanks, size);
}

/// `whole` must be a multiple of `part`; the texts explain where both come from.
Result<void> check_divides(std::int64_t whole, std::string_view whole_is, std::int64_t part,
                           std::string_view part_is) {
  if (whole % part == 0) return {};
  return fail(Errc::invalid_argument, "{} = {} is not divisible by {} = {}; change one of these sizes",
              whole_is, whole, part_is, part);
}

}  // namespace

std::string_view name_of(GroupKind kind) noexcept {
  return kGroupNames[kind];
}

Mesh::Numbering Mesh::number(const std::array<Axis, 5>& order, const std::array<int, 5>& sizes) {
  Numbering numbering;
  int stride = 1;
  for (const Axis axis : order) {
    numbering[axis] = {.size = sizes[axis], .stride = stride};
    stride *= sizes[axis];
  }
  return numbering;
}

Result<std::array<Mesh::Axis, 5>> Mesh::parse_order(std::string_view order) {
  std::array<Axis, 5> axes{};
  std::array<bool, 5> seen{};
  std::string_view rest = order;
  bool valid = true;
  for (Axis& axis : axes) {
    const std::string_view name = rest.substr(0, rest.find('-'));
    rest.remove_prefix(std::min(rest.size(), name.size() + 1));
    const auto index =
        static_cast<std::size_t>(std::find(kAxisNames.begin(), kAxisNames.end(), name) - kAxisNames.begin());
    valid = valid && index < kAxisNames.size() && !seen[index];
    if (!valid) break;
    seen[index] = true;
    axis = static_cast<Axis>(index);
  }
  if (!valid || !rest.empty()) {
    return fail(
        Errc::invalid_argument,
        "'{}' is not an order of the axes: write each of tp, cp, ep, dp, pp once, with '-' between them, as "
        "in {}",
        order, kDefaultOrder);
  }
  return axes;
}

Result<Mesh> Mesh::create(MeshSizes sizes, std::string_view order) {
  if (sizes.etp == 0) sizes.etp = sizes.tp;
  TRY(check_positive("tp", sizes.tp));
  TRY(check_positive("cp", sizes.cp));
  TRY(check_positive("ep", sizes.ep));
  TRY(check_positive("dp", sizes.dp));
  TRY(check_positive("pp", sizes.pp));
  TRY(check_positive("etp", sizes.etp));
  TRY(check_positive("optimizer_instances", sizes.optimizer_instances));
  std::int64_t ranks = sizes.tp;
  for (const int size : {sizes.cp, sizes.dp, sizes.pp}) {
    ranks *= size;
    if (ranks > kMostRanks) {
      return fail(Errc::invalid_argument, "tp {} * cp {} * dp {} * pp {} are more than {} ranks", sizes.tp,
                  sizes.cp, sizes.dp, sizes.pp, kMostRanks);
    }
  }
  const std::int64_t stage = ranks / sizes.pp;
  const std::int64_t dp_cp = std::int64_t{sizes.dp} * sizes.cp;
  TRY(check_divides(stage, "tp * cp * dp", std::int64_t{sizes.etp} * sizes.ep, "etp * ep"));
  Mesh mesh;
  mesh.sizes_ = sizes;
  mesh.world_ = {static_cast<std::int32_t>(ranks)};
  mesh.edp_ = static_cast<int>(stage / (std::int64_t{sizes.etp} * sizes.ep));
  TRY(check_divides(dp_cp, "dp * cp", sizes.optimizer_instances, "optimizer_instances"));
  TRY(check_divides(mesh.edp_, "edp", sizes.optimizer_instances, "optimizer_instances"));

  const auto axes = TRY(parse_order(order));
  mesh.dense_ = number(axes, {sizes.tp, sizes.cp, 1, sizes.dp, sizes.pp});
  mesh.expert_ = number(axes, {sizes.etp, 1, sizes.ep, mesh.edp_, sizes.pp});
  if (sizes.pp > 1 && mesh.dense_[pp].stride != mesh.expert_[pp].stride) {
    return fail(
        Errc::invalid_argument,
        "in the order '{}' pipeline stages of experts are other ranks than those of dense layers (stride "
        "{} and {}); put pp last",
        order, mesh.expert_[pp].stride, mesh.dense_[pp].stride);
  }
  return mesh;
}

int Mesh::Line::size() const {
  int size = 1;
  for (std::size_t i = 0; i < count; ++i) size *= axes[i].size;
  return size;
}

/// Members ascend: the axis with the longest stride decides first.
int Mesh::Line::place_of(Rank rank) const {
  int place = 0;
  int fewer = 1;
  for (std::size_t i = 0; i < count; ++i) {
    place += rank.value / axes[i].stride % axes[i].size * fewer;
    fewer *= axes[i].size;
  }
  return place;
}

Rank Mesh::Line::first(Rank rank) const {
  for (std::size_t i = 0; i < count; ++i)
    rank.value -= rank.value / axes[i].stride % axes[i].size * axes[i].stride;
  return rank;
}

Rank Mesh::Line::at(Rank first, int place) const {
  for (std::size_t i = 0; i < count; ++i) {
    first.value += place % axes[i].size * axes[i].stride;
    place /= axes[i].size;
  }
  return first;
}

Mesh::Line Mesh::line(const Numbering& numbering, std::initializer_list<Axis> axes) {
  Line line;
  for (const Axis axis : axes) {
    if (numbering[axis].size > 1) line.axes[line.count++] = numbering[axis];
  }
  std::sort(line.axes.begin(), line.axes.begin() + line.count,
            [](const Span& a, const Span& b) { return a.stride < b.stride; });
  return line;
}

std::vector<Rank> Mesh::along(const Line& line, Rank rank) {
  const Rank first = line.first(rank);
  std::vector<Rank> members;
  members.reserve(static_cast<std::size_t>(line.size()));
  for (int place = 0; place < line.size(); ++place) members.push_back(line.at(first, place));
  return members;
}

std::vector<Rank> Mesh::instance_chunk(const Line& line, Rank rank) const {
  const int length = line.size() / sizes_.optimizer_instances;
  const Rank first = line.first(rank);
  const int start = line.place_of(rank) / length * length;
  std::vector<Rank> members;
  for (int place = start; place < start + length; ++place) members.push_back(line.at(first, place));
  return members;
}

std::vector<Rank> Mesh::same_place_in_chunks(const Line& line, Rank rank) const {
  const int length = line.size() / sizes_.optimizer_instances;
  const Rank first = line.first(rank);
  std::vector<Rank> members;
  for (int place = line.place_of(rank) % length; place < line.size(); place += length)
    members.push_back(line.at(first, place));
  return members;
}

std::vector<Rank> Mesh::pipeline_ends(Rank rank, bool with_last) const {
  const auto stages = along(line(dense_, {pp}), rank);
  std::vector<Rank> members{stages.front()};
  if (with_last && stages.size() > 1) members.push_back(stages.back());
  if (std::find(members.begin(), members.end(), rank) == members.end()) return {};
  return members;
}

std::optional<Mesh::Line> Mesh::line_of(GroupKind kind) const {
  switch (kind) {
    case GroupKind::world:
      return line(dense_, {tp, cp, dp, pp});
    case GroupKind::tp:
      return line(dense_, {tp});
    case GroupKind::cp:
      return line(dense_, {cp});
    case GroupKind::dp:
      return line(dense_, {dp});
    case GroupKind::pp:
      return line(dense_, {pp});
    case GroupKind::dp_cp:
    case GroupKind::intra_dp_cp:
      return line(dense_, {dp, cp});
    case GroupKind::tp_pp:
      return line(dense_, {tp, pp});
    case GroupKind::tp_dp_cp:
      return line(dense_, {tp, dp, cp});
    case GroupKind::ep:
      return line(expert_, {ep});
    case GroupKind::etp:
      return line(expert_, {tp});
    case GroupKind::edp:
    case GroupKind::intra_edp:
    case GroupKind::inter_instance:
      return line(expert_, {dp});
    case GroupKind::embd:
    case GroupKind::pos_embd:
      return std::nullopt;
  }
  CHECK(false, "every kind of group is handled");
}

std::vector<Rank> Mesh::group(GroupKind kind, Rank rank) const {
  CHECK(rank.value >= 0 && rank.value < world_.value, "a rank is one of the mesh's");
  const auto line = line_of(kind);
  if (!line) return pipeline_ends(rank, kind == GroupKind::embd);
  if (kind == GroupKind::intra_dp_cp || kind == GroupKind::intra_edp) return instance_chunk(*line, rank);
  if (kind == GroupKind::inter_instance) return same_place_in_chunks(*line, rank);
  return along(*line, rank);
}

int Mesh::place_in_group(GroupKind kind, Rank rank) const {
  CHECK(rank.value >= 0 && rank.value < world_.value, "a rank is one of the mesh's");
  const auto line = line_of(kind);
  if (!line) {
    const auto members = pipeline_ends(rank, kind == GroupKind::embd);
    const auto found = std::find(members.begin(), members.end(), rank);
    CHECK(found != members.end(), "the rank is in a group of this kind");
    return static_cast<int>(found - members.begin());
  }
  const int place = line->place_of(rank);
  const int length = line->size() / sizes_.optimizer_instances;
  if (kind == GroupKind::intra_dp_cp || kind == GroupKind::intra_edp) return place % length;
  return kind == GroupKind::inter_instance ? place / length : place;
}

Rank Mesh::first_of_group(GroupKind kind, Rank rank) const {
  CHECK(rank.value >= 0 && rank.value < world_.value, "a rank is one of the mesh's");
  const auto line = line_of(kind);
  if (!line) {
    const auto members = pipeline_ends(rank, kind == GroupKind::embd);
    CHECK(!members.empty(), "the rank is in a group of this kind");
    return members.front();
  }
  const Rank first = line->first(rank);
  const int place = line->place_of(rank);
  const int length = line->size() / sizes_.optimizer_instances;
  if (kind == GroupKind::intra_dp_cp || kind == GroupKind::intra_edp)
    return line->at(first, place / length * length);
  return kind == GroupKind::inter_instance ? line->at(first, place % length) : first;
}

std::vector<std::vector<Rank>> Mesh::groups(GroupKind kind) const {
  std::vector<std::vector<Rank>> found;
  for (int rank = 0; rank < world_.value; ++rank) {
    auto members = group(kind, {rank});
    if (!members.empty() && members.front().value == rank) found.push_back(std::move(members));
  }
  return found;
}

int Mesh::group_size(GroupKind kind) const {
  const auto line = line_of(kind);
  if (!line) return static_cast<int>(pipeline_ends(Rank{0}, kind == GroupKind::embd).size());
  if (kind == GroupKind::intra_dp_cp || kind == GroupKind::intra_edp)
    return line->size() / sizes_.optimizer_instances;
  return kind == GroupKind::inter_instance ? sizes_.optimizer_instances : line->size();
}

}  // namespace troupe::core
