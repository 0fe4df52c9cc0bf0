#include <cstdint>
#include <limits>
#include <utility>

#include "actors/session/c/calls.hpp"
#include "actors/session/c/options.hpp"

using troupe::actors::TrainerGroup;
using troupe::actors::TrainerGroupSpec;
using troupe::actors::c::call;
using troupe::actors::c::dtype_of;
using troupe::actors::c::missing;
using troupe::actors::c::pass_of;
using troupe::actors::c::told;
using troupe::actors::c::with;
using troupe::core::CollectiveKind;
using troupe::core::DeclaredOperation;
using troupe::core::DType;
using troupe::core::Errc;
using troupe::core::fail;
using troupe::core::Result;
using troupe::gpu::BufferView;
using troupe::gpu::ConstBufferView;

namespace {

Result<TrainerGroup::Reduction> reduction_of(troupe_reduction reduction) {
  switch (reduction) {
    case TROUPE_SUM:
      return TrainerGroup::Reduction::sum;
    case TROUPE_AVERAGE:
      return TrainerGroup::Reduction::average;
    case TROUPE_MIN:
      return TrainerGroup::Reduction::min;
    case TROUPE_MAX:
      return TrainerGroup::Reduction::max;
    case TROUPE_PRODUCT:
    case TROUPE_BIT_AND:
    case TROUPE_BIT_OR:
    case TROUPE_BIT_XOR:
    case TROUPE_REDUCTION_LAST:
      break;
  }
  return fail(Errc::invalid_argument,
              "{} is not a reduction of a session; use TROUPE_SUM, TROUPE_AVERAGE, TROUPE_MIN or TROUPE_MAX",
              static_cast<int>(reduction));
}

Result<CollectiveKind> declared_kind_of(troupe_operation_kind kind) {
  switch (kind) {
    case TROUPE_ALL_REDUCE:
      return CollectiveKind::all_reduce;
    case TROUPE_REDUCE_SCATTER:
      return CollectiveKind::reduce_scatter;
    case TROUPE_ALL_GATHER:
      return CollectiveKind::all_gather;
    case TROUPE_ALL_TO_ALL:
      return CollectiveKind::all_to_all;
    case TROUPE_BROADCAST:
      return CollectiveKind::broadcast;
    case TROUPE_BARRIER:
    case TROUPE_OPERATION_KIND_LAST:
      break;
  }
  return fail(Errc::invalid_argument,
              "{} is not a kind of declared operation; use TROUPE_ALL_REDUCE or another of "
              "troupe_operation_kind, up to "
              "TROUPE_BROADCAST ({})",
              static_cast<int>(kind), static_cast<int>(TROUPE_BROADCAST));
}

/// No memory has more.
constexpr auto kMostBytes = static_cast<std::size_t>(std::numeric_limits<std::ptrdiff_t>::max());

/// The bytes of `count` elements of `data`, which is called `name`.
Result<std::size_t> bytes_of(const char* name, const void* data, std::size_t count, DType dtype) {
  if (count > 0 && data == nullptr)
    return fail(Errc::invalid_argument, "{} is NULL, expected {} elements of {}", name, count,
                troupe::core::name_of(dtype));
  if (count > kMostBytes / size_of(dtype))
    return fail(Errc::invalid_argument, "{} has {} elements of {}, which no memory holds; check the count",
                name, count, troupe::core::name_of(dtype));
  return count * size_of(dtype);
}

Result<BufferView> written(const char* name, void* data, std::size_t count, DType dtype) {
  const std::size_t bytes = TRY(bytes_of(name, data, count, dtype));
  return BufferView{static_cast<std::byte*>(data), bytes};
}

Result<ConstBufferView> read(const char* name, const void* data, std::size_t count, DType dtype) {
  const std::size_t bytes = TRY(bytes_of(name, data, count, dtype));
  return ConstBufferView(static_cast<const std::byte*>(data), bytes);
}

/// What an array called `name` has for each member of the group.
struct MemberCounts {
  TrainerGroup::Counts counts;
  std::size_t total = 0;
};

Result<MemberCounts> counts_of(const char* name, const std::size_t* counts, std::size_t members,
                               const TrainerGroup& group) {
  if (counts == nullptr) return tl::unexpected(missing(name).error());
  if (members != static_cast<std::size_t>(group.size()))
    return fail(Errc::invalid_argument,
                "{} has entries for {} members, expected one for each of the group's {}", name, members,
                group.size());
  MemberCounts taken{TrainerGroup::Counts(counts, counts + members)};
  for (const std::size_t count : taken.counts) {
    if (count > kMostBytes - taken.total)
      return fail(Errc::invalid_argument, "{} has an entry of {} elements, which no memory holds", name,
                  count);
    taken.total += count;
  }
  return taken;
}

/// `index`, which is called `name`, as the place of a member.
Result<int> member_of(const char* name, std::int32_t index, const TrainerGroup& group) {
  if (index >= 0 && index < group.size()) return index;
  return fail(Errc::invalid_argument, "{} is {}, expected a place among the group's members, 0 to {}", name,
              index, group.size() - 1);
}

/// Like call(), with the group; NULL is an error, and so is a session that was left.
template <class Body>
troupe_status with_group(troupe_group* group, troupe_error* error, const Body& body) {
  if (group == nullptr)
    return told({Errc::invalid_argument, "the group is NULL; troupe_group_of() finds one"}, error);
  return call(error, [&]() -> Result<void> {
    if (group->session->is_left)
      return fail(Errc::invalid_argument, "the session was left; join again to use its groups");
    return body(*group->group);
  });
}

/// Like with_group(), for a body that posts an operation.
template <class Body>
troupe_status post(troupe_group* group, troupe_dtype dtype, std::uint64_t* posted, troupe_error* error,
                   const Body& body) {
  return with_group(group, error, [&](TrainerGroup& g) -> Result<void> {
    const auto number = TRY(body(g, TRY(dtype_of(dtype))));
    if (posted != nullptr) *posted = static_cast<std::uint64_t>(number);
    return {};
  });
}

using Posted = Result<TrainerGroup::Posted>;

}  // namespace

troupe_status troupe_options_add_group(troupe_options* options, const char* name, const int32_t* part_of,
                                       size_t ranks, troupe_error* error) {
  return call(error, [&]() -> Result<void> {
    if (options == nullptr) return missing("options");
    if (name == nullptr) return missing("name");
    if (part_of == nullptr && ranks > 0) return missing("part_of");
    TrainerGroupSpec group;
    group.name = name;
    for (std::size_t rank = 0; rank < ranks; ++rank) {
      if (part_of[rank] < 0 || static_cast<std::size_t>(part_of[rank]) >= ranks)
        return fail(Errc::invalid_argument,
                    "group {} has rank {} in part {}; {} ranks have at most parts 0 to {}", name, rank,
                    part_of[rank], ranks, ranks - 1);
      const auto part = static_cast<std::size_t>(part_of[rank]);
      if (part >= group.members.size()) group.members.resize(part + 1);
      group.members[part].push_back({static_cast<std::int32_t>(rank)});
    }
    for (std::size_t part = 0; part < group.members.size(); ++part) {
      if (group.members[part].empty())
        return fail(Errc::invalid_argument,
                    "group {} has no rank in part {}, but one in part {}; number parts without gaps", name,
                    part, group.members.size() - 1);
    }
    options->session.groups.push_back(std::move(group));
    return {};
  });
}

troupe_status troupe_options_add_operation(troupe_options* options, const troupe_operation* operation,
                                           troupe_error* error) {
  return call(error, [&]() -> Result<void> {
    if (options == nullptr) return missing("options");
    if (operation == nullptr) return missing("operation");
    if (operation->group == nullptr) return missing("operation.group");
    if (operation->counts == nullptr) return missing("operation.counts");
    if (operation->bounded != 0 && operation->bounded != 1)
      return fail(Errc::invalid_argument, "operation.bounded is {}, expected 0 or 1", operation->bounded);
    DeclaredOperation declared;
    declared.group = operation->group;
    declared.kind = TRY(declared_kind_of(operation->kind));
    declared.dtype = TRY(dtype_of(operation->dtype));
    declared.counts.assign(operation->counts, operation->counts + operation->members);
    declared.bounded = operation->bounded == 1;
    if (operation->pass == TROUPE_WEIGHTS)
      return fail(Errc::invalid_argument,
                  "{} is not a pass of operations; use TROUPE_FORWARD or TROUPE_BACKWARD",
                  static_cast<int>(operation->pass));
    declared.pass = TRY(pass_of(operation->pass));
    if (operation->unit != TROUPE_NO_UNIT) declared.unit = troupe::core::UnitIndex{operation->unit};
    options->session.operations.push_back(std::move(declared));
    return {};
  });
}

troupe_status troupe_group_of(troupe_session* session, const char* name, troupe_group** group,
                              troupe_error* error) {
  return with(session, error, [&](auto& s) -> Result<void> {
    if (name == nullptr) return missing("name");
    if (group == nullptr) return missing("group");
    auto* const found = TRY(s.group(name));
    *group = &session->groups.try_emplace(name, troupe_group{session, found}).first->second;
    return {};
  });
}

int32_t troupe_group_size(const troupe_group* group) {
  return group == nullptr ? 0 : group->group->size();
}

int32_t troupe_group_index(const troupe_group* group) {
  return group == nullptr ? -1 : group->group->index();
}

int32_t troupe_group_member(const troupe_group* group, int32_t index) {
  if (group == nullptr || index < 0 || index >= group->group->size()) return -1;
  return group->group->members()[static_cast<std::size_t>(index)].value;
}

troupe_status troupe_group_all_reduce(troupe_group* group, void* values, size_t count, troupe_dtype dtype,
                                      troupe_reduction reduction, uint64_t* posted, troupe_error* error) {
  return post(group, dtype, posted, error, [&](TrainerGroup& g, DType type) -> Posted {
    return g.all_reduce(TRY(written("values", values, count, type)), type, TRY(reduction_of(reduction)));
  });
}

troupe_status troupe_group_reduce_scatter(troupe_group* group, const void* input, void* output,
                                          const size_t* counts, size_t members, troupe_dtype dtype,
                                          troupe_reduction reduction, uint64_t* posted, troupe_error* error) {
  return post(group, dtype, posted, error, [&](TrainerGroup& g, DType type) -> Posted {
    auto parts = TRY(counts_of("counts", counts, members, g));
    const std::size_t own = parts.counts[static_cast<std::size_t>(g.index())];
    const auto from = TRY(read("input", input, parts.total, type));
    const auto to = TRY(written("output", output, own, type));
    const auto how = TRY(reduction_of(reduction));
    return g.reduce_scatter(from, to, type, std::move(parts.counts), how);
  });
}

troupe_status troupe_group_all_gather(troupe_group* group, const void* input, void* output,
                                      const size_t* counts, size_t members, troupe_dtype dtype,
                                      uint64_t* posted, troupe_error* error) {
  return post(group, dtype, posted, error, [&](TrainerGroup& g, DType type) -> Posted {
    auto parts = TRY(counts_of("counts", counts, members, g));
    const std::size_t own = parts.counts[static_cast<std::size_t>(g.index())];
    const auto from = TRY(read("input", input, own, type));
    const auto to = TRY(written("output", output, parts.total, type));
    return g.all_gather(from, to, type, std::move(parts.counts));
  });
}

troupe_status troupe_group_all_to_all(troupe_group* group, const void* input, const size_t* sent,
                                      void* output, const size_t* taken, size_t members, troupe_dtype dtype,
                                      uint64_t* posted, troupe_error* error) {
  return post(group, dtype, posted, error, [&](TrainerGroup& g, DType type) -> Posted {
    auto out = TRY(counts_of("sent", sent, members, g));
    auto in = TRY(counts_of("taken", taken, members, g));
    const auto from = TRY(read("input", input, out.total, type));
    const auto to = TRY(written("output", output, in.total, type));
    return g.all_to_all(from, std::move(out.counts), to, std::move(in.counts), type);
  });
}

troupe_status troupe_group_broadcast(troupe_group* group, void* values, size_t count, troupe_dtype dtype,
                                     int32_t root, uint64_t* posted, troupe_error* error) {
  return post(group, dtype, posted, error, [&](TrainerGroup& g, DType type) -> Posted {
    return g.broadcast(TRY(written("values", values, count, type)), type, TRY(member_of("root", root, g)));
  });
}

troupe_status troupe_group_send(troupe_group* group, const void* values, size_t count, troupe_dtype dtype,
                                int32_t to, uint64_t* posted, troupe_error* error) {
  return post(group, dtype, posted, error, [&](TrainerGroup& g, DType type) -> Posted {
    return g.send(TRY(read("values", values, count, type)), type, TRY(member_of("to", to, g)));
  });
}

troupe_status troupe_group_receive(troupe_group* group, void* values, size_t count, troupe_dtype dtype,
                                   int32_t from, uint64_t* posted, troupe_error* error) {
  return post(group, dtype, posted, error, [&](TrainerGroup& g, DType type) -> Posted {
    return g.receive(TRY(written("values", values, count, type)), type, TRY(member_of("from", from, g)));
  });
}

troupe_status troupe_group_wait(troupe_group* group, uint64_t posted, troupe_error* error) {
  return with_group(group, error,
                    [&](TrainerGroup& g) { return g.wait(static_cast<TrainerGroup::Posted>(posted)); });
}
