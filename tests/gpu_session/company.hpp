#pragma once

#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "actors/session/process_world.hpp"
#include "tests/nccl_emulation/emulated_member.hpp"

namespace troupe::actors {

/// Ranks that are threads of this process, each with actors, network, an emulated GPU and communicators of
/// its own.
class EmulatedCompany {
 public:
  std::vector<std::string> violations() const { return fake_.violations(); }

  /// What each rank's `play` came to. Checkpoints are in `directory`, when one is given.
  template <class Value>
  std::vector<core::Result<Value>> run(int ranks, const std::function<core::Result<Value>(RankWorld&)>& play,
                                       const std::string& directory = {}) {
    const auto port = free_port();
    std::vector<core::Result<Value>> results(static_cast<std::size_t>(ranks),
                                             core::fail(core::Errc::aborted, "did not run"));
    std::vector<std::thread> threads;
    for (int rank = 0; rank < ranks; ++rank) {
      threads.emplace_back([&, rank] {
        gpu::EmulatedNcclDevice member;
        auto world = ProcessWorld::create(options_of(rank, ranks, port, directory, member));
        auto& result = results[static_cast<std::size_t>(rank)];
        result = world ? play(**world) : core::Result<Value>(tl::unexpected(world.error()));
      });
    }
    for (auto& thread : threads) thread.join();
    return results;
  }

 private:
  static std::uint16_t free_port() {
    const int listener = ::socket(AF_INET, SOCK_STREAM, 0);
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t size = sizeof(address);
    EXPECT_EQ(::bind(listener, reinterpret_cast<sockaddr*>(&address), size), 0);
    EXPECT_EQ(::getsockname(listener, reinterpret_cast<sockaddr*>(&address), &size), 0);
    ::close(listener);
    return ntohs(address.sin_port);
  }

  ProcessWorldOptions options_of(int rank, int ranks, std::uint16_t port, const std::string& directory,
                                 gpu::EmulatedNcclDevice& member) {
    ProcessWorldOptions options;
    options.environment = [=] {
      JobEnvironment environment;
      environment.rank = {rank};
      environment.world = {ranks};
      environment.local_rank = rank;
      environment.local_world = ranks;
      environment.job = "emulated";
      environment.control_port = port;
      return core::Result<JobEnvironment>(environment);
    };
    options.checkpoint_directory = directory;
    options.open_device = [&member](gpu::DeviceFailed on_failure) {
      member = gpu::open_emulated_nccl_device(std::move(on_failure));
      return core::Result<std::unique_ptr<gpu::Device>>(std::move(member.device));
    };
    options.open_collectives = [this, &member](gpu::Device& device, gpu::Rendezvous& rendezvous)
        -> core::Result<std::unique_ptr<gpu::CollectiveBackend>> {
      auto library = TRY(gpu::make_nccl_library(fake_.start_process(member.run_on_stream).api()));
      return std::make_unique<gpu::NcclBackend>(std::move(library), device, std::move(member.port),
                                                rendezvous);
    };
    return options;
  }

  gpu::FakeNccl fake_;
};

}  // namespace troupe::actors
