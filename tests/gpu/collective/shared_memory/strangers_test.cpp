// Other users of the machine: they see what is in /dev/shm and may make files there.
#include <fmt/format.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <map>
#include <string>
#include <thread>

#include "gpu/collective/shared_memory/segment.hpp"
#include "gpu/collective/shared_memory/shared_memory_backend.hpp"
#include "tests/gpu/collective/watched_rendezvous.hpp"

namespace troupe::gpu {
namespace {

namespace fs = std::filesystem;
using namespace std::chrono_literals;

const fs::path kSharedMemory = "/dev/shm";

/// The permissions of the job's segments, by name.
std::map<std::string, fs::perms> segments_of(const std::string& job) {
  std::map<std::string, fs::perms> found;
  for (const auto& entry : fs::directory_iterator(kSharedMemory)) {
    const std::string name = entry.path().filename().string();
    if (name.starts_with("troupe-" + job + "-")) found[name] = entry.status().permissions();
  }
  return found;
}

/// A name that a stranger took. As with somebody else's file in a sticky directory, shm_unlink() does not
/// take it away.
class TakenName {
 public:
  explicit TakenName(const std::string& name) : path_(kSharedMemory / name) { fs::create_directory(path_); }
  TakenName(const TakenName&) = delete;
  TakenName& operator=(const TakenName&) = delete;
  ~TakenName() { fs::remove(path_); }

 private:
  fs::path path_;
};

class SharedMemoryStrangers : public ::testing::Test {
 protected:
  /// Sets the group "dp" of two members up; what the job has in /dev/shm meanwhile.
  std::map<std::string, fs::perms> set_up(std::uint64_t epoch) {
    std::map<std::string, fs::perms> seen;
    WatchedRendezvous rendezvous([&](const std::string&, const std::string&) { seen = segments_of(job); });
    const auto member = [&](int self) {
      SharedMemoryBackend backend(rendezvous);
      const auto group = backend.create_group({.job = job,
                                               .epoch = {epoch},
                                               .name = "dp",
                                               .members = {{0}, {1}},
                                               .self = {self},
                                               .deadline = 10s});
      EXPECT_TRUE(group.has_value()) << group.error().message;
    };
    std::jthread other(member, 1);
    member(0);
    return seen;
  }

  const std::string job = fmt::format("strangers-{}", getpid());
};

TEST_F(SharedMemoryStrangers, HinderNobodyByTakingTheNextEpochsNames) {
  const auto seen = set_up(1);
  ASSERT_EQ(seen.size(), 1U);
  const std::string prefix = "troupe-" + job + "-";
  const TakenName plain(prefix + "2-dp");
  const TakenName as_before(prefix + "2" + seen.begin()->first.substr(prefix.size() + 1));

  set_up(2);
}

TEST_F(SharedMemoryStrangers, SeeOnlyMeaninglessNamesAndUnopenableFiles) {
  const auto first = set_up(1);
  const auto second = set_up(1);

  ASSERT_EQ(first.size(), 1U);
  ASSERT_EQ(second.size(), 1U);
  EXPECT_NE(first.begin()->first, second.begin()->first);
  for (const auto& [name, permissions] : {*first.begin(), *second.begin()}) {
    EXPECT_THAT(name, ::testing::MatchesRegex("troupe-" + job + "-1-dp-[0-9a-f]{32}"));
    EXPECT_EQ(permissions, fs::perms::owner_read | fs::perms::owner_write);
  }
  EXPECT_THAT(segments_of(job), ::testing::IsEmpty()) << "names are gone once all have mapped";
}

TEST_F(SharedMemoryStrangers, ExistingFileIsNeverTakenForANewSegment) {
  const std::string name = new_segment_name(job, 1, "dp").value();
  { const auto segment = SharedSegment::create(name, 4096).value(); }

  const auto again = SharedSegment::create(name, 4096);
  SharedSegment::unlink(name);

  ASSERT_FALSE(again.has_value());
  EXPECT_THAT(again.error().message, ::testing::HasSubstr("File exists"));
}

}  // namespace
}  // namespace troupe::gpu
