// A process that stays on its GPU for another epoch.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <utility>

#include "actors/session/session.hpp"
#include "actors/shell/process_rank.hpp"
#include "actors/world/exit_status.hpp"
#include "core/errors.hpp"
#include "tests/cuda_emulation/control.hpp"
#include "tests/nccl_emulation/emulated_member.hpp"

namespace troupe::actors {
namespace {

using testing::HasSubstr;

const core::Error kLost{core::Errc::peer_lost, "rank 1 was lost"};
constexpr std::size_t kMiB = std::size_t{1} << 20;

/// The only rank of its job, which goes on from one epoch to the next.
class GpuThatStays : public testing::Test {
 protected:
  GpuThatStays() {
    cuda_emulation::reset();
    cuda_emulation::set_memory_bytes(64 * kMiB);
    ProcessWorldOptions options;
    options.environment = [] { return core::Result<JobEnvironment>(JobEnvironment{}); };
    options.next_environment = [](const JobEnvironment& over) {
      auto next = over;
      next.epoch.value += 1;
      return core::Result<JobEnvironment>(next);
    };
    options.open_device = [this](gpu::DeviceFailed on_failure) {
      member_ = gpu::open_emulated_nccl_device(std::move(on_failure));
      return core::Result<std::unique_ptr<gpu::Device>>(std::move(member_.device));
    };
    options.open_collectives =
        [this](gpu::Device& device,
               gpu::Rendezvous& rendezvous) -> core::Result<std::unique_ptr<gpu::CollectiveBackend>> {
      auto process = fake_.start_process(member_.run_on_stream, member_.memory);
      return std::make_unique<gpu::NcclBackend>(TRY(gpu::make_nccl_library(process.api())), device,
                                                member_.port, rendezvous, gpu::NcclOptions());
    };
    world_ = ProcessRank::create(std::move(options)).value();
  }

  gpu::FakeNccl fake_;
  gpu::EmulatedNcclDevice member_;
  std::unique_ptr<ProcessRank> world_;
};

TEST_F(GpuThatStays, EndsItsProcessOnceTheDeviceHasFailed) {
  ASSERT_TRUE(world_->form_anew(kLost));
  cuda_emulation::break_device(cudaErrorIllegalAddress);

  const auto formed = world_->form_anew(kLost);

  ASSERT_FALSE(formed);
  EXPECT_THAT(formed.error().message, HasSubstr("this process ends instead of going on in another epoch"));
  EXPECT_THAT(formed.error().message, HasSubstr("cudaErrorIllegalAddress"));
  EXPECT_NE(exit_code_of(formed.error()), kExitFenced);
  world_.reset();
  cuda_emulation::forget_what_is_alive();
}

TEST_F(GpuThatStays, GivesUpOldStateWhereBothHaveNoRoom) {
  struct Held final : Keepsake {
    explicit Held(gpu::Buffer given) : memory(std::move(given)) {}
    gpu::Buffer memory;
  };
  constexpr std::int64_t kElements = std::int64_t{1} << 21;  // 16 bytes of each
  world_->keep(std::make_unique<Held>(world_->device().allocate(16 * kMiB).value()));
  {
    const auto session = Session::join(*world_, {}, {{"weight", {kElements}}});
    ASSERT_TRUE(session) << session.error().message;
    EXPECT_NE(world_->kept(), nullptr) << "there is room for both";
  }
  ASSERT_TRUE(world_->form_anew(kLost));
  world_->keep(nullptr);
  world_->keep(std::make_unique<Held>(world_->device().allocate(40 * kMiB).value()));

  const auto session = Session::join(*world_, {}, {{"weight", {kElements}}});

  ASSERT_TRUE(session) << session.error().message;
  EXPECT_EQ(world_->kept(), nullptr);
}

}  // namespace
}  // namespace troupe::actors
