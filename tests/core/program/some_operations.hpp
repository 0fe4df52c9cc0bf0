#pragma once

#include "core/program/trainer_operation.hpp"

namespace troupe::core {

/// On a group of two, of 8 elements each.
inline TrainerOperation operation(CollectiveKind kind, GroupKind group, TrainerPoint point,
                                  DType dtype = DType::f32, Counts counts = Counts::even(8, 2)) {
  return {.kind = kind, .group = group, .dtype = dtype, .counts = std::move(counts), .point = point};
}

/// What two ranks that share four experts tell each other: how many rows each expert gets.
inline TrainerOperation counts_of_experts(int unit) {
  return operation(CollectiveKind::all_gather, GroupKind::ep, {Phase::forward, unit}, DType::i64,
                   Counts::even(4, 2));
}

/// And the rows.
inline TrainerOperation rows_of_experts(Phase phase, int unit) {
  return operation(CollectiveKind::all_to_all, GroupKind::ep, {phase, unit}, DType::u8,
                   Counts::bounded(96, 2));
}

}  // namespace troupe::core
