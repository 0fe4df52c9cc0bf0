#include "posix/mapped_file.hpp"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <unistd.h>

#include <numeric>
#include <string>
#include <utility>
#include <vector>

#include "posix/program_end.hpp"
#include "tests/support/scratch_folder.hpp"

namespace troupe::posix {
namespace {

using testing::ExitedWithCode;
using testing::HasSubstr;
using testing::KilledBySignal;

constexpr std::size_t kBytes = 3 * 65536 + 10;

class MappedFiles : public testing::Test {
 protected:
  Descriptor file(const std::string& name, std::size_t bytes = kBytes) const {
    Descriptor made(::open(folder_.path(name).c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600));
    const std::string text(bytes, 'a');
    EXPECT_EQ(::write(made.get(), text.data(), bytes), static_cast<ssize_t>(bytes));
    return made;
  }

  tests::ScratchFolder folder_;
};

int sum(std::span<const std::byte> bytes) {
  return std::accumulate(bytes.begin(), bytes.end(), 0,
                         [](int so_far, std::byte byte) { return so_far + static_cast<int>(byte); });
}

void without_core_file() {
  const rlimit none{0, 0};
  ::setrlimit(RLIMIT_CORE, &none);
}

TEST_F(MappedFiles, HaveTheFilesBytesAfterItsDescriptorIsClosed) {
  const auto mapped = MappedFile::open(file("text"), "the text").value();

  EXPECT_EQ(mapped.bytes().size(), kBytes);
  EXPECT_EQ(sum(mapped.bytes()), static_cast<int>(kBytes) * 'a');
}

TEST_F(MappedFiles, MayBeEmpty) {
  EXPECT_TRUE(MappedFile::open(file("empty", 0), "nothing").value().bytes().empty());
}

TEST_F(MappedFiles, ThatCannotBeMappedAreAnError) {
  EXPECT_THAT(MappedFile::open(Descriptor(), "the text").error().message,
              HasSubstr("cannot map \"the text\""));
}

/// Cut to this many bytes while it is read.
class CutFiles : public MappedFiles, public testing::WithParamInterface<std::size_t> {};

TEST_P(CutFiles, EndTheProgramWithTheirName) {
  const auto opened = file("text");

  EXPECT_EXIT(
      {
        const NamedProgram named("player", 3);
        const auto other = MappedFile::open(file("other"), "other").value();
        const auto mapped = MappedFile::open(opened, "the text of somebody").value();
        if (::ftruncate(opened.get(), static_cast<off_t>(GetParam())) != 0) ::_exit(0);
        ::_exit(sum(other.bytes()) + sum(mapped.bytes()) == 0 ? 1 : 0);
      },
      ExitedWithCode(3),
      "^player: the text of somebody became shorter while it was read, or its disk failed: it had 196618 "
      "bytes");
}

INSTANTIATE_TEST_SUITE_P(To, CutFiles, testing::Values(0, 1, 70000, 3 * 65536),
                         testing::PrintToStringParamName());

TEST_F(MappedFiles, KeepTheirGuardWhenMovedAndOthersLeave) {
  const auto opened = file("text");

  EXPECT_EXIT(
      {
        const NamedProgram named("player", 3);
        std::vector<MappedFile> files;
        for (int i = 0; i < 10; ++i) files.push_back(MappedFile::open(file("other"), "other").value());
        files.push_back(MappedFile::open(opened, "the text").value());
        files.erase(files.begin(), files.begin() + 10);
        files.push_back(MappedFile::open(file("other"), "other").value());
        if (::ftruncate(opened.get(), 0) != 0) ::_exit(0);
        ::_exit(sum(files.front().bytes()) == 0 ? 1 : 0);
      },
      ExitedWithCode(3), "^player: the text became shorter");
}

TEST_F(MappedFiles, LeaveWhatIsNotTheirsAsItIs) {
  const auto opened = file("text"), others = file("others");

  EXPECT_EXIT(
      {
        without_core_file();
        const NamedProgram named("player", 3);
        const auto mapped = MappedFile::open(opened, "the text").value();
        const auto* bytes =
            static_cast<const char*>(::mmap(nullptr, kBytes, PROT_READ, MAP_PRIVATE, others.get(), 0));
        if (::ftruncate(others.get(), 0) != 0) ::_exit(0);
        ::_exit(*static_cast<const volatile char*>(bytes));
      },
      KilledBySignal(SIGBUS), "");
}

}  // namespace
}  // namespace troupe::posix
