#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cstdint>
#include <fstream>
#include <string>
#include <thread>
#include <vector>

#include "actors/session/process_world.hpp"
#include "apps/gpt/distributed_trainer.hpp"
#include "tests/nccl_emulation/emulated_member.hpp"

namespace troupe::apps::gpt {
namespace {

using core::Result;

std::uint16_t free_port() {
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

std::string write_text() {
  const std::string path = testing::TempDir() + "gpt_session_text";
  std::ofstream text(path);
  for (int i = 0; i < 2000; ++i) text << (i * i % 7 == 3 ? "to be " : "or not ");
  return path;
}

DistributedTrainerOptions trainer_options(core::DType dtype) {
  DistributedTrainerOptions options;
  options.model = {.layers = 1, .heads = 2, .width = 16, .feed_forward = 24, .context = 8, .vocabulary = 128};
  options.arithmetic.dtype = dtype;
  options.microbatch = {.batch = 1, .length = 8};
  options.session.training.lanes = 4;
  options.session.training.microbatches = 2;
  options.session.training.bucket_elements = 1500;
  options.session.training.clip_norm = 1;
  options.schedule = {.peak = 1e-2, .floor = 1e-3, .warmup = core::Step{1}, .total = core::Step{3}};
  return options;
}

/// What a rank saw.
struct Seen {
  std::vector<double> losses;
  double evaluation = 0;
  std::uint64_t parameters = 0;
  friend bool operator==(const Seen&, const Seen&) = default;
};

Result<Seen> train(actors::RankWorld& world, const DistributedTrainerOptions& options, const Corpus& corpus) {
  const auto trainer = TRY(DistributedTrainer::create(world, options, corpus));
  Seen seen;
  for (int step = 0; step < 3; ++step) seen.losses.push_back(TRY(trainer->step()).loss);
  seen.evaluation = TRY(trainer->evaluate(2));
  seen.parameters = TRY(trainer->parameter_hash());
  TRY(trainer->session().leave());
  return seen;
}

// Ranks are threads of this process, each with actors, network, device and communicators of its own.
class TrainerOnGpus : public testing::Test {
 protected:
  void TearDown() override { EXPECT_EQ(fake_.violations(), std::vector<std::string>{}); }

  std::vector<Result<Seen>> train_all(int ranks, const DistributedTrainerOptions& options) {
    const auto port = free_port();
    std::vector<Result<Seen>> all(static_cast<std::size_t>(ranks),
                                  core::fail(core::Errc::aborted, "not run"));
    std::vector<std::thread> threads;
    for (int rank = 0; rank < ranks; ++rank) {
      threads.emplace_back(
          [&, rank] { all[static_cast<std::size_t>(rank)] = train_rank(rank, ranks, port, options); });
    }
    for (auto& thread : threads) thread.join();
    return all;
  }

 private:
  Result<Seen> train_rank(int rank, int ranks, std::uint16_t port, const DistributedTrainerOptions& options) {
    auto member = gpu::open_emulated_nccl_device();
    actors::ProcessWorldOptions world_options;
    world_options.environment = [=] {
      actors::JobEnvironment environment;
      environment.rank = {rank};
      environment.world = {ranks};
      environment.local_rank = rank;
      environment.local_world = ranks;
      environment.job = "gpt";
      environment.control_port = port;
      return Result<actors::JobEnvironment>(environment);
    };
    world_options.open_device = [&](const gpu::DeviceFailed&) {
      return Result<std::unique_ptr<gpu::Device>>(std::move(member.device));
    };
    world_options.open_collectives =
        [&](gpu::Device& device,
            gpu::Rendezvous& rendezvous) -> Result<std::unique_ptr<gpu::CollectiveBackend>> {
      auto library = TRY(gpu::make_nccl_library(fake_.start_process(member.run_on_stream).api()));
      return std::make_unique<gpu::NcclBackend>(std::move(library), device, std::move(member.port),
                                                rendezvous);
    };
    const auto world = TRY(actors::ProcessWorld::create(std::move(world_options)));
    return train(*world, options, corpus_);
  }

  gpu::FakeNccl fake_;
  const Corpus corpus_ = Corpus::open(write_text(), 8).value();
};

TEST_F(TrainerOnGpus, SeesTheSameBitsOnAnyNumberOfRanks) {
  for (const auto dtype : {core::DType::bf16, core::DType::f32}) {
    const auto alone = train_all(1, trainer_options(dtype))[0];
    ASSERT_TRUE(alone) << alone.error().message;
    EXPECT_LT(alone->losses.back(), alone->losses.front());

    for (int ranks : {2, 4}) {
      for (const auto& seen : train_all(ranks, trainer_options(dtype))) {
        ASSERT_TRUE(seen) << seen.error().message;
        EXPECT_EQ(*seen, *alone) << ranks << " ranks in " << core::name_of(dtype);
      }
    }
  }
}

}  // namespace
}  // namespace troupe::apps::gpt
