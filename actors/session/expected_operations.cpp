#include "actors/session/expected_operations.hpp"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <utility>

#include "core/program/exchange.hpp"

namespace troupe::actors {
namespace {

using gpu::ExpectedOperation;
using gpu::OperationKind;
using Parts = std::vector<std::size_t>;

Parts even(std::int64_t elements, std::int64_t members) {
  return Parts(static_cast<std::size_t>(members), static_cast<std::size_t>(elements));
}

Parts parts_of(const core::Counts& counts) {
  Parts parts;
  for (const auto& run : counts.runs)
    parts.insert(parts.end(), static_cast<std::size_t>(run.members), static_cast<std::size_t>(run.elements));
  return parts;
}

bool has_parts(OperationKind kind) {
  return kind == OperationKind::reduce_scatter || kind == OperationKind::all_gather;
}

void add(const core::ProgramEntry& entry, std::int64_t members, ExpectedOperations& expected) {
  const auto kind = gpu::kind_of(entry.operation);
  if (entry.tensor.kind == core::TensorKind::verdict) {
    expected.insert({kind, core::DType::i64, {static_cast<std::size_t>(entry.elements)}});
  } else if (entry.tensor.kind == core::TensorKind::parameters && kind == OperationKind::all_gather) {
    const auto part = entry.elements / members;
    if (core::is_in_blocks(entry)) {
      expected.insert({kind, core::DType::u8, even(core::wire_bytes(entry, part), members)});
    } else {
      expected.insert({kind, entry.wire, even(part, members)});
    }
  } else if (kind == OperationKind::reduce_scatter) {
    expected.insert({kind, entry.wire, even(entry.elements / members, members)});
  } else if (kind == OperationKind::all_gather && entry.chunk == 0) {
    expected.insert({kind, entry.wire, parts_of(entry.counts)});
  } else if (kind == OperationKind::all_gather) {
    for (std::int64_t chunk = 0; chunk < core::chunks_of(entry); ++chunk) {
      Parts parts;
      for (const auto& range : core::chunk_ranges(entry, chunk))
        parts.push_back(static_cast<std::size_t>(range.size()));
      expected.insert({kind, entry.wire, std::move(parts)});
    }
  } else {
    const auto most = entry.chunk > 0 ? std::min(entry.chunk, entry.elements) : entry.elements;
    expected.insert({kind, entry.wire, {static_cast<std::size_t>(most)}});
  }
}

}  // namespace

std::map<core::Communicator, ExpectedOperations> expected_of_step(const core::Program& program,
                                                                  const core::Mesh& mesh) {
  std::map<core::Communicator, ExpectedOperations> expected;
  for (const auto* segment : program.segments()) {
    for (const auto& run : segment->runs) {
      for (const auto& entry : run.entries)
        add(entry, mesh.group_size(entry.group), expected[core::communicator_of(entry)]);
    }
  }
  return expected;
}

ExpectedOperations expected_of_trainer(const TrainingPlan& plan, const std::string& group, int index,
                                       int members) {
  ExpectedOperations expected;
  for (const auto& operation : plan.inputs.operations) {
    if (core::name_of(operation.group) != group) continue;
    const auto kind = gpu::kind_of(operation.kind);
    expected.insert({kind, operation.dtype,
                     has_parts(kind) ? parts_of(operation.counts)
                                     : Parts{static_cast<std::size_t>(operation.counts.most())}});
  }
  if (group == core::name_of(core::GroupKind::pp)) {
    // The last one's neighbour is the first, whose embedding it may share.
    for (const int peer : {(index + 1) % members, (index + members - 1) % members}) {
      for (const auto kind : {OperationKind::send, OperationKind::receive})
        expected.insert({kind, core::DType::f32, {1}, peer});
    }
  }
  if (!expected.empty()) return expected;
  return {{OperationKind::all_reduce, core::DType::f32, {1}},
          {OperationKind::reduce_scatter, core::DType::f32, even(1, members)},
          {OperationKind::all_gather, core::DType::f32, even(1, members)}};
}

}  // namespace troupe::actors
