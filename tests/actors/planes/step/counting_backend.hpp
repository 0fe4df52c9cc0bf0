#pragma once

#include <gtest/gtest.h>

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <utility>

#include "core/errors.hpp"
#include "gpu/collective/group.hpp"

namespace troupe::actors {

/// By rank: bytes that left it for others, in all_gathers and exchanges.
inline std::map<int, std::int64_t> bytes_left;  // NOLINT: written by the groups of one test at a time

/// Counts what its member sends, as the collective's inputs say.
class CountingGroup final : public gpu::Group {
 public:
  CountingGroup(std::unique_ptr<gpu::Group> of, int rank) : of_(std::move(of)), rank_(rank) {}

  int index() const override { return of_->index(); }
  int size() const override { return of_->size(); }
  const std::string& name() const override { return of_->name(); }
  core::Result<std::shared_ptr<gpu::OperationStatus>> post(gpu::Operation operation,
                                                           gpu::StreamView stream) override {
    const auto own = static_cast<std::size_t>(index());
    const auto others = static_cast<std::size_t>(size()) - 1;
    const auto width = core::size_of(operation.dtype);
    std::size_t left = operation.input.bytes * others;
    if (operation.kind == gpu::OperationKind::all_to_all)
      left = operation.input.bytes - operation.input_counts[own] * width;
    EXPECT_TRUE(operation.kind == gpu::OperationKind::all_to_all ||
                operation.kind == gpu::OperationKind::all_gather);
    bytes_left[rank_] += static_cast<std::int64_t>(left);
    return of_->post(std::move(operation), stream);
  }
  void abort(core::Error reason) override { of_->abort(std::move(reason)); }

 private:
  std::unique_ptr<gpu::Group> of_;
  int rank_;
};

class CountingBackend final : public gpu::CollectiveBackend {
 public:
  explicit CountingBackend(gpu::CollectiveBackend& of) : of_(of) {}

  std::string_view name() const override { return of_.name(); }
  core::Result<std::unique_ptr<gpu::Group>> create_group(gpu::GroupOptions options) override {
    const int rank = options.self.value;
    return std::make_unique<CountingGroup>(TRY(of_.create_group(std::move(options))), rank);
  }

 private:
  gpu::CollectiveBackend& of_;
};

inline gpu::CollectiveBackend& counting(gpu::CollectiveBackend& backend) {
  static std::unique_ptr<CountingBackend> last;
  last = std::make_unique<CountingBackend>(backend);
  return *last;
}

}  // namespace troupe::actors
