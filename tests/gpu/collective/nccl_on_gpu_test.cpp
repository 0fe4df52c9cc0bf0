// The real NCCL: ranks as processes that share the first GPU. Skipped where there is none.
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <numeric>
#include <string>
#include <vector>

#include "core/errors.hpp"
#include "gpu/collective/nccl/environment.hpp"
#include "gpu/collective/nccl/open_nccl.hpp"
#include "gpu/collective/rendezvous_file.hpp"
#include "gpu/devices.hpp"
#include "gpu/kernels.hpp"

namespace troupe::gpu {
namespace {

using namespace std::chrono_literals;
using Numbers = std::vector<std::int32_t>;

constexpr int kNoGpu = 77;

/// What one rank does in its process; nothing of CUDA exists before the fork.
class Rank {
 public:
  Rank(int rank, int ranks, const std::filesystem::path& directory)
      : rank_(rank), ranks_(ranks), rendezvous_(directory) {}

  core::Result<void> open() {
    for (const auto& [name, value] : several_ranks_on_one_gpu(rank_)) setenv(name.c_str(), value.c_str(), 1);
    device_ = TRY(open_device("cuda:0"));
    backend_ = TRY(open_nccl_backend(*device_, 0, rendezvous_));
    stream_ = TRY(device_->create_stream({.name = "test"}));
    staging_ = TRY(device_->allocate_staging(kBytes));
    memory_ = TRY(device_->allocate(kBytes));
    return {};
  }

  core::Result<std::unique_ptr<Group>> create_group(std::uint64_t epoch) {
    GroupOptions options{.job = "gpu", .epoch = {epoch}, .name = "dp", .members = {}, .self = {rank_}};
    for (int i = 0; i < ranks_; ++i) options.members.push_back({i});
    return backend_->create_group(std::move(options));
  }

  /// Runs the operation on device memory: `input` at its beginning, `output_elements` behind.
  core::Result<Numbers> run(Group& group, Operation operation, const Numbers& input,
                            std::size_t output_elements) {
    const std::size_t bytes = input.size() * sizeof(std::int32_t);
    const std::size_t output_bytes = output_elements * sizeof(std::int32_t);
    std::copy(input.begin(), input.end(), staging_.view().as<std::int32_t>().begin());
    copy(staging_.view().subview(0, bytes), memory_.view().subview(0, bytes), stream_.get());
    operation.dtype = core::DType::i32;
    operation.input = memory_.view().subview(0, bytes);
    operation.output = memory_.view().subview(kBytes / 2, output_bytes);
    const auto status = TRY(group.post(std::move(operation), stream_.get()));
    copy(memory_.view().subview(kBytes / 2, output_bytes), staging_.view().subview(0, output_bytes),
         stream_.get());
    TRY(stream_->synchronize(60s));
    const auto result = status->result();
    CHECK(result.has_value(), "the stream has passed the operation");
    TRY(core::Result<void>(*result));
    const auto output = staging_.view().as<std::int32_t>();
    return Numbers(output.begin(), output.begin() + static_cast<std::ptrdiff_t>(output_elements));
  }

 private:
  static constexpr std::size_t kBytes = std::size_t{1} << 20;

  int rank_;
  int ranks_;
  FileRendezvous rendezvous_;
  std::unique_ptr<Device> device_;
  std::unique_ptr<CollectiveBackend> backend_;
  Stream stream_;
  Buffer staging_;
  Buffer memory_;
};

/// Whether the ranks of one epoch get from each kind of operation what they should.
core::Result<bool> exchange(Rank& rank, Group& group) {
  const std::int32_t self = group.index();
  const std::int32_t ranks = group.size();
  Numbers ramp(1000);
  std::iota(ramp.begin(), ramp.end(), self);
  const Numbers sum = TRY(rank.run(group, {.kind = OperationKind::all_reduce}, ramp, ramp.size()));
  for (std::size_t i = 0; i < sum.size(); ++i) {
    if (sum[i] != ranks * static_cast<std::int32_t>(i) + ranks * (ranks - 1) / 2) return false;
  }
  // Rank r has r + 1 elements, so that parts are uneven.
  std::vector<std::size_t> counts;
  Numbers all;
  for (std::int32_t r = 0; r < ranks; ++r) {
    counts.push_back(static_cast<std::size_t>(r) + 1);
    all.insert(all.end(), counts.back(), r + 7);
  }
  const std::size_t own = counts[static_cast<std::size_t>(self)];
  const Numbers gathered = TRY(rank.run(group, {.kind = OperationKind::all_gather, .input_counts = counts},
                                        Numbers(own, self + 7), all.size()));
  if (gathered != all) return false;
  const Numbers scattered =
      TRY(rank.run(group, {.kind = OperationKind::reduce_scatter, .output_counts = counts}, all, own));
  if (scattered != Numbers(own, ranks * (self + 7))) return false;
  Numbers sent;
  Numbers expected;
  for (std::int32_t r = 0; r < ranks; ++r) {
    sent.push_back(10 * self + r);
    expected.push_back(10 * r + self);
  }
  return TRY(rank.run(group, {.kind = OperationKind::all_to_all}, sent, sent.size())) == expected;
}

/// Forks the ranks; each does `work` and ends with its code.
template <class Work>
std::vector<int> run_ranks(int ranks, Work work) {
  std::string pattern = (std::filesystem::temp_directory_path() / "troupe-nccl-XXXXXX").string();
  CHECK(mkdtemp(pattern.data()) != nullptr, "the test has a temporary directory");
  std::vector<pid_t> pids;
  for (int i = 0; i < ranks; ++i) {
    const pid_t pid = fork();
    CHECK(pid >= 0, "the test can fork");
    if (pid == 0) {
      prctl(PR_SET_PDEATHSIG, SIGKILL);
      Rank rank(i, ranks, pattern);
      const auto opened = rank.open();
      if (!opened) {
        (void)std::fprintf(stderr, "%s\n", opened.error().message.c_str());
        _exit(opened.error().code == core::Errc::unavailable ? kNoGpu : 1);
      }
      _exit(work(rank, i));
    }
    pids.push_back(pid);
  }
  std::vector<int> codes;
  for (const pid_t pid : pids) {
    int status = 0;
    waitpid(pid, &status, 0);
    codes.push_back(WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status));
  }
  std::filesystem::remove_all(pattern);
  return codes;
}

int report(const core::Error& error) {
  (void)std::fprintf(stderr, "%s: %s\n", core::to_string(error.code), error.message.c_str());
  return 1;
}

class NcclOnGpu : public testing::TestWithParam<int> {};

TEST_P(NcclOnGpu, MovesAndReducesInOneEpochAfterAnother) {
  const auto codes = run_ranks(GetParam(), [](Rank& rank, int) {
    for (std::uint64_t epoch = 1; epoch <= 3; ++epoch) {
      const auto group = rank.create_group(epoch);
      if (!group) return report(group.error());
      const auto right = exchange(rank, **group);
      if (!right) return report(right.error());
      if (!*right) return 2;
    }
    return 0;
  });
  if (codes[0] == kNoGpu) GTEST_SKIP() << "no GPU, or no NCCL, or a build without CUDA";

  EXPECT_EQ(codes, std::vector<int>(static_cast<std::size_t>(GetParam()), 0));
}

TEST_P(NcclOnGpu, AKilledPeerEndsTheSurvivorsOperation) {
  const int last = GetParam() - 1;
  if (last == 0) return;
  const auto codes = run_ranks(GetParam(), [last](Rank& rank, int self) {
    const auto group = rank.create_group(1);
    if (!group) return report(group.error());
    if (self == last) raise(SIGKILL);
    const auto sum = rank.run(**group, {.kind = OperationKind::all_reduce, .deadline = 20s}, {1, 2}, 2);
    if (sum) return 2;
    const bool is_expected =
        sum.error().code == core::Errc::peer_lost || sum.error().code == core::Errc::timeout;
    return is_expected ? 0 : report(sum.error());
  });
  if (codes[0] == kNoGpu) GTEST_SKIP() << "no GPU, or no NCCL, or a build without CUDA";

  std::vector<int> expected(static_cast<std::size_t>(last), 0);
  expected.push_back(128 + SIGKILL);
  EXPECT_EQ(codes, expected);
}

INSTANTIATE_TEST_SUITE_P(All, NcclOnGpu, testing::Values(1, 2, 4), [](const testing::TestParamInfo<int>& of) {
  return std::to_string(of.param) + "_ranks";
});

}  // namespace
}  // namespace troupe::gpu
