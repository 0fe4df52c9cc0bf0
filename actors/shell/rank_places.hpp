#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "core/ids.hpp"
#include "core/result.hpp"
#include "gpu/collective/group.hpp"

namespace troupe::actors {

/// Where a rank runs, as it sees it, and where its launcher says it is.
struct RankPlace {
  std::uint64_t host = 0;  ///< the same for ranks that share memory and the loopback interface
  std::string host_name;
  int local_rank = 0;
  int local_world = 1;  ///< ranks of the host, as the launcher says
  std::string source;   ///< the variables that say so; empty: none does

  friend bool operator==(const RankPlace&, const RankPlace&) = default;
};

/// One line, and back. Errc::corrupt for any other.
std::string to_line(const RankPlace& place);
core::Result<RankPlace> place_from_line(std::string_view line);

/// Compares what launchers said about the ranks of each host with the hosts on which they are; `places` are
/// in the order of ranks. Errc::mismatch names a rank that is not where it was said to be, with the variables
/// that said so; empty if all are. What a launcher calls a host may be a part of one: two such parts of one
/// host are not told from each other.
std::optional<core::Error> misplaced_rank(const std::vector<RankPlace>& places);

/// A back-end whose first group is made only after the places of all ranks were compared, so that a wrong one
/// is named on all of them. `rendezvous` must outlive it.
class PlacedBackend final : public gpu::CollectiveBackend {
 public:
  PlacedBackend(std::unique_ptr<gpu::CollectiveBackend> backend, gpu::Rendezvous& rendezvous, RankPlace own,
                core::WorldSize world)
      : backend_(std::move(backend)), rendezvous_(rendezvous), own_(std::move(own)), world_(world) {}

  std::string_view name() const override { return backend_->name(); }
  core::Result<gpu::Buffer> allocate(gpu::Device& device, std::size_t bytes) override {
    return backend_->allocate(device, bytes);
  }
  bool runs_in_launch_order() const override { return backend_->runs_in_launch_order(); }
  core::Result<std::unique_ptr<gpu::Group>> create_group(gpu::GroupOptions options) override;

 private:
  core::Result<void> compare(const gpu::GroupOptions& options);

  std::unique_ptr<gpu::CollectiveBackend> backend_;
  gpu::Rendezvous& rendezvous_;
  const RankPlace own_;
  const core::WorldSize world_;
  bool is_compared_ = false;
};

}  // namespace troupe::actors
