#pragma once

#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "actors/shell/process_rank.hpp"
#include "core/errors.hpp"
#include "tests/nccl_emulation/emulated_member.hpp"
#include "tests/support/unused_port.hpp"

namespace troupe::actors {

/// A folder for files of this process alone: tests of several checkouts may run at the same time.
inline std::filesystem::path own_folder(const std::string& name) {
  return std::filesystem::path(testing::TempDir()) / (name + "-" + std::to_string(::getpid()));
}

/// Ranks that are threads of this process, each with actors, network, an emulated GPU and communicators of
/// its own.
class EmulatedCompany {
 public:
  /// What each rank's world is made with besides what makes it this company's.
  std::function<void(ProcessWorldOptions&)> alter = [](ProcessWorldOptions&) {};
  /// Each rank believes itself alone on its host.
  bool is_on_several_hosts = false;

  std::vector<std::string> violations() const { return fake_.violations(); }
  const gpu::FakeNccl& nccl() const { return fake_; }
  /// For the ranks that run() starts from now on.
  gpu::NcclOptions nccl_options;
  /// Called with each rank and its NCCL, before the rank plays.
  std::function<void(int rank, gpu::FakeNccl::Process&)> prepare;

  /// What each rank's `play` came to. Checkpoints are in `directory` and local copies in a folder a rank of
  /// `local_directory`, when they are given.
  template <class Value>
  std::vector<core::Result<Value>> run(int ranks, const std::function<core::Result<Value>(RankWorld&)>& play,
                                       const std::string& directory = {},
                                       const std::string& local_directory = {}) {
    const auto port = tests::unused_port();
    std::vector<core::Result<Value>> results(static_cast<std::size_t>(ranks),
                                             core::fail(core::Errc::aborted, "did not run"));
    std::vector<std::thread> threads;
    for (int rank = 0; rank < ranks; ++rank) {
      threads.emplace_back([&, rank] {
        gpu::EmulatedNcclDevice member;
        auto options = options_of(rank, ranks, port, member);
        options.checkpoint_directory = directory;
        options.local_checkpoint_directory = local_directory;
        alter(options);
        auto world = ProcessRank::create(std::move(options));
        auto& result = results[static_cast<std::size_t>(rank)];
        result = world ? play(**world) : core::Result<Value>(tl::unexpected(world.error()));
      });
    }
    for (auto& thread : threads) thread.join();
    return results;
  }

 private:
  ProcessWorldOptions options_of(int rank, int ranks, std::uint16_t port, gpu::EmulatedNcclDevice& member) {
    ProcessWorldOptions options;
    const bool is_alone = is_on_several_hosts;
    options.environment = [=] {
      JobEnvironment environment;
      environment.rank = {rank};
      environment.world = {ranks};
      environment.local_rank = is_alone ? 0 : rank;
      environment.local_world = is_alone ? 1 : ranks;
      // The memory that ranks of a host share has the job's name.
      environment.job = "emulated-" + std::to_string(::getpid());
      environment.control_port = port;
      return core::Result<JobEnvironment>(environment);
    };
    options.open_device = [&member](gpu::DeviceFailed on_failure) {
      member = gpu::open_emulated_nccl_device(std::move(on_failure));
      return core::Result<std::unique_ptr<gpu::Device>>(std::move(member.device));
    };
    options.open_collectives = [this, rank, &member](gpu::Device& device, gpu::Rendezvous& rendezvous)
        -> core::Result<std::unique_ptr<gpu::CollectiveBackend>> {
      auto process = fake_.start_process(member.run_on_stream, member.memory);
      if (prepare) prepare(rank, process);
      auto library = TRY(gpu::make_nccl_library(process.api()));
      return std::make_unique<gpu::NcclBackend>(std::move(library), device, std::move(member.port),
                                                rendezvous, nccl_options);
    };
    return options;
  }

  gpu::FakeNccl fake_;
};

}  // namespace troupe::actors
