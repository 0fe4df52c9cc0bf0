#include "core/plan/mesh.hpp"

#include <algorithm>

#include "core/errors.hpp"

namespace troupe::core {
namespace {

constexpr int kMostRanks = 1 << 20;

constexpr std::array<std::string_view, kGroupKinds> kGroupNames{
    "world", "tp",       "cp", "dp",  "pp",  "dp_cp",       "tp_pp",     "tp_dp_cp",
    "embd",  "pos_embd", "ep", "etp", "edp", "intra_dp_cp", "intra_edp", "inter_instance"};

constexpr std::array<std::string_view, 5> kAxisNames{"tp", "cp", "ep", "dp", "pp"};

Result<void> check_positive(std::string_view axis, int size) {
  if (size >= 1 && size <= kMostRanks) return {};
  return fail(Errc::invalid_argument, "the size of axis {} is 1 to {}, not {}", axis, kMostRanks, size);
}

/// `whole` must be a multiple of `part`; the texts explain where both come from.
Result<void> check_divides(std::int64_t whole, std::string_view whole_is, std::int64_t part,
                           std::string_view part_is) {
  if (whole % part == 0) return {};
  return fail(Errc::invalid_argument, "{} = {} does not divide by {} = {}; change one of these sizes",
              whole_is, whole, part_is, part);
}

std::ptrdiff_t place_in(const std::vector<Rank>& group, Rank rank) {
  return std::find(group.begin(), group.end(), rank) - group.begin();
}

}  // namespace

std::string_view name_of(GroupKind kind) noexcept {
  return kGroupNames[static_cast<std::size_t>(kind)];
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

std::vector<Rank> Mesh::along(const Numbering& numbering, std::initializer_list<Axis> axes, Rank rank) const {
  std::vector<Rank> members{rank};
  for (const Axis axis : axes) {
    const auto [size, stride] = numbering[axis];
    std::vector<Rank> wider;
    for (const Rank member : members) {
      const int origin = member.value - member.value / stride % size * stride;
      for (int i = 0; i < size; ++i) wider.push_back({origin + i * stride});
    }
    members = std::move(wider);
  }
  std::sort(members.begin(), members.end());
  return members;
}

std::vector<Rank> Mesh::instance_chunk(std::vector<Rank> group, Rank rank) const {
  const auto length = static_cast<std::ptrdiff_t>(group.size()) / sizes_.optimizer_instances;
  const auto first = group.begin() + place_in(group, rank) / length * length;
  return {first, first + length};
}

std::vector<Rank> Mesh::same_place_in_chunks(const std::vector<Rank>& group, Rank rank) const {
  const auto length = static_cast<std::ptrdiff_t>(group.size()) / sizes_.optimizer_instances;
  std::vector<Rank> members;
  for (auto place = place_in(group, rank) % length; place < static_cast<std::ptrdiff_t>(group.size());
       place += length) {
    members.push_back(group[static_cast<std::size_t>(place)]);
  }
  return members;
}

std::vector<Rank> Mesh::pipeline_ends(Rank rank, bool with_last) const {
  const auto stages = along(dense_, {pp}, rank);
  std::vector<Rank> members{stages.front()};
  if (with_last && stages.size() > 1) members.push_back(stages.back());
  if (std::find(members.begin(), members.end(), rank) == members.end()) return {};
  return members;
}

std::vector<Rank> Mesh::group(GroupKind kind, Rank rank) const {
  CHECK(rank.value >= 0 && rank.value < world_.value, "a rank is one of the mesh's");
  switch (kind) {
    case GroupKind::world:
      return along(dense_, {tp, cp, dp, pp}, rank);
    case GroupKind::tp:
      return along(dense_, {tp}, rank);
    case GroupKind::cp:
      return along(dense_, {cp}, rank);
    case GroupKind::dp:
      return along(dense_, {dp}, rank);
    case GroupKind::pp:
      return along(dense_, {pp}, rank);
    case GroupKind::dp_cp:
      return along(dense_, {dp, cp}, rank);
    case GroupKind::tp_pp:
      return along(dense_, {tp, pp}, rank);
    case GroupKind::tp_dp_cp:
      return along(dense_, {tp, dp, cp}, rank);
    case GroupKind::embd:
      return pipeline_ends(rank, true);
    case GroupKind::pos_embd:
      return pipeline_ends(rank, false);
    case GroupKind::ep:
      return along(expert_, {ep}, rank);
    case GroupKind::etp:
      return along(expert_, {tp}, rank);
    case GroupKind::edp:
      return along(expert_, {dp}, rank);
    case GroupKind::intra_dp_cp:
      return instance_chunk(along(dense_, {dp, cp}, rank), rank);
    case GroupKind::intra_edp:
      return instance_chunk(along(expert_, {dp}, rank), rank);
    case GroupKind::inter_instance:
      return same_place_in_chunks(along(expert_, {dp}, rank), rank);
  }
  CHECK(false, "every kind of group is handled");
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
  return static_cast<int>(group(kind, Rank{0}).size());
}

}  // namespace troupe::core
