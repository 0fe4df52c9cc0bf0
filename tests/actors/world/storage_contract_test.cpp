#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>

#include "actors/world/simulation/storage.hpp"
#include "actors/world/storage/posix.hpp"
#include "tests/actors/world/transport/pair.hpp"

namespace troupe::actors {
namespace {

using core::Errc;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

/// A storage with nothing in it, and what has to go when the test has ended.
class Fixture {
 public:
  virtual ~Fixture() = default;
  virtual Storage& storage() = 0;
};

class PosixFixture final : public Fixture {
 public:
  PosixFixture() {
    std::string name = (std::filesystem::temp_directory_path() / "troupe-storage-XXXXXX").string();
    directory_ = mkdtemp(name.data());
    storage_ = std::move(*PosixStorage::open(directory_));
  }
  ~PosixFixture() override { std::filesystem::remove_all(directory_); }
  Storage& storage() override { return *storage_; }

 private:
  std::string directory_;
  std::unique_ptr<PosixStorage> storage_;
};

class SimulatedFixture final : public Fixture {
 public:
  Storage& storage() override { return storage_; }

 private:
  SimulatedStorage storage_{{}};
};

struct Implementation {
  const char* name;
  std::unique_ptr<Fixture> (*make)();

  friend std::ostream& operator<<(std::ostream& out, const Implementation& of) { return out << of.name; }
};

class StorageContract : public ::testing::TestWithParam<Implementation> {
 protected:
  void write(std::string_view path, std::string_view text) {
    auto file = storage.create(path);
    ASSERT_TRUE(file) << file.error().message;
    ASSERT_TRUE((*file)->append(bytes_of(text)));
    ASSERT_TRUE((*file)->sync());
    ASSERT_TRUE((*file)->close());
  }
  std::string content(std::string_view path) {
    auto bytes = storage.read(path, 0, SIZE_MAX);
    return bytes ? text_of(*bytes) : core::to_string(bytes.error().code);
  }

  std::unique_ptr<Fixture> fixture = GetParam().make();
  Storage& storage = fixture->storage();
};

TEST_P(StorageContract, ReadsBackWhatWasAppended) {
  auto file = storage.create("file");
  ASSERT_TRUE(file);
  ASSERT_TRUE((*file)->append(bytes_of("hello ")));
  ASSERT_TRUE((*file)->append(bytes_of("")));
  ASSERT_TRUE((*file)->append(bytes_of("world")));
  ASSERT_TRUE((*file)->close());

  EXPECT_EQ(content("file"), "hello world");
  EXPECT_EQ(*storage.size("file"), 11U);
}

TEST_P(StorageContract, ReadsPartsAndLessAtTheEnd) {
  write("file", "0123456789");

  EXPECT_EQ(text_of(*storage.read("file", 3, 4)), "3456");
  EXPECT_EQ(text_of(*storage.read("file", 8, 4)), "89");
  EXPECT_EQ(text_of(*storage.read("file", 10, 4)), "");
  EXPECT_EQ(text_of(*storage.read("file", 1000, 4)), "");
}

TEST_P(StorageContract, CreateMakesAnOldFileEmpty) {
  write("file", "old content");

  write("file", "new");

  EXPECT_EQ(content("file"), "new");
}

TEST_P(StorageContract, ListsNamesInOrder) {
  ASSERT_TRUE(storage.make_directory("step_2"));
  write("step_2/b", "1");
  write("step_2/a", "2");
  ASSERT_TRUE(storage.make_directory("step_2/c"));

  EXPECT_THAT(*storage.list("step_2"), ElementsAre("a", "b", "c"));
  EXPECT_THAT(*storage.list(""), ElementsAre("step_2"));
}

TEST_P(StorageContract, RenameReplacesAFile) {
  write("new", "2");
  write("old", "1");

  ASSERT_TRUE(storage.rename("new", "old"));

  EXPECT_EQ(content("old"), "2");
  EXPECT_THAT(*storage.list(""), ElementsAre("old"));
}

TEST_P(StorageContract, RenameMovesADirectoryWithItsContents) {
  ASSERT_TRUE(storage.make_directory("a"));
  ASSERT_TRUE(storage.make_directory("a/b"));
  write("a/b/file", "x");
  ASSERT_TRUE(storage.make_directory("target"));

  ASSERT_TRUE(storage.rename("a/b", "target"));

  EXPECT_EQ(content("target/file"), "x");
  EXPECT_THAT(*storage.list("a"), ElementsAre());
}

TEST_P(StorageContract, RenameDoesNotReplaceWhatIsInUse) {
  ASSERT_TRUE(storage.make_directory("empty"));
  ASSERT_TRUE(storage.make_directory("full"));
  write("full/file", "x");
  write("file", "y");

  EXPECT_FALSE(storage.rename("empty", "full"));
  EXPECT_FALSE(storage.rename("file", "empty"));
  EXPECT_FALSE(storage.rename("empty", "file"));
  EXPECT_FALSE(storage.rename("full", "full/inside"));
  EXPECT_TRUE(storage.rename("file", "file"));
  EXPECT_EQ(content("file"), "y");
}

TEST_P(StorageContract, RemovesFilesAndEmptyDirectories) {
  ASSERT_TRUE(storage.make_directory("a"));
  write("a/file", "x");

  EXPECT_FALSE(storage.remove("a"));
  EXPECT_TRUE(storage.remove("a/file"));
  EXPECT_TRUE(storage.remove("a"));
  EXPECT_THAT(*storage.list(""), ElementsAre());
}

TEST_P(StorageContract, SaysWhatIsMissing) {
  EXPECT_EQ(content("missing"), "not_found");
  EXPECT_EQ(storage.size("missing").error().code, Errc::not_found);
  EXPECT_EQ(storage.list("missing").error().code, Errc::not_found);
  EXPECT_EQ(storage.remove("missing").error().code, Errc::not_found);
  EXPECT_EQ(storage.rename("missing", "other").error().code, Errc::not_found);
  EXPECT_EQ(storage.create("missing/file").error().code, Errc::not_found);
  EXPECT_EQ(storage.make_directory("missing/directory").error().code, Errc::not_found);
  EXPECT_EQ(storage.sync_directory("missing").error().code, Errc::not_found);
  EXPECT_THAT(storage.size("missing").error().message, HasSubstr("missing\""));
}

TEST_P(StorageContract, SaysWhatIsThereAlready) {
  ASSERT_TRUE(storage.make_directory("a"));

  EXPECT_EQ(storage.make_directory("a").error().code, Errc::already_exists);
}

TEST_P(StorageContract, TakesNoDirectoryForAFileNorTheReverse) {
  ASSERT_TRUE(storage.make_directory("directory"));
  write("file", "x");

  EXPECT_FALSE(storage.create("directory"));
  EXPECT_FALSE(storage.read("directory", 0, 1));
  EXPECT_FALSE(storage.size("directory"));
  EXPECT_FALSE(storage.list("file"));
  EXPECT_FALSE(storage.sync_directory("file"));
  EXPECT_FALSE(storage.create("file/below"));
}

TEST_P(StorageContract, RefusesPathsThatLeadElsewhere) {
  for (const char* path : {"/etc", "..", "a/../b", "a//b", "a/", "."}) {
    EXPECT_EQ(storage.create(path).error().code, Errc::invalid_argument) << path;
    EXPECT_EQ(storage.list(path).error().code, Errc::invalid_argument) << path;
    EXPECT_EQ(storage.rename("a", path).error().code, Errc::invalid_argument) << path;
  }
}

TEST_P(StorageContract, SyncsDirectories) {
  ASSERT_TRUE(storage.make_directory("a"));

  EXPECT_TRUE(storage.sync_directory("a"));
  EXPECT_TRUE(storage.sync_directory(""));
}

INSTANTIATE_TEST_SUITE_P(Implementations, StorageContract,
                         ::testing::Values(Implementation{"Posix",
                                                          []() -> std::unique_ptr<Fixture> {
                                                            return std::make_unique<PosixFixture>();
                                                          }},
                                           Implementation{"Simulated",
                                                          []() -> std::unique_ptr<Fixture> {
                                                            return std::make_unique<SimulatedFixture>();
                                                          }}),
                         testing::PrintToStringParamName());

TEST(PosixStorage, SaysThatTheDirectoryIsMissing) {
  auto storage = PosixStorage::open("/nonexistent/troupe");

  ASSERT_FALSE(storage);
  EXPECT_EQ(storage.error().code, Errc::not_found);
}

}  // namespace
}  // namespace troupe::actors
