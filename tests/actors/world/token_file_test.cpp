#include "actors/world/token_file.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <filesystem>
#include <fstream>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "tests/support/scratch_folder.hpp"

namespace troupe::actors {
namespace {

using testing::AllOf;
using testing::HasSubstr;

class TokenFile : public testing::Test {
 protected:
  void write(const std::string& text, unsigned mode) const {
    std::ofstream(path_) << text;
    ::chmod(path_.c_str(), mode);
  }

  tests::ScratchFolder folder_;
  std::string path_ = folder_.path("token");
};

TEST_F(TokenFile, IsMadeByTheFirstForItsOwnerAlone) {
  const auto token = token_from_file(path_);

  ASSERT_TRUE(token) << token.error().message;
  struct stat status {};
  ASSERT_EQ(::stat(path_.c_str(), &status), 0);
  EXPECT_EQ(status.st_mode & 0777, 0600U);
  EXPECT_EQ(token_from_file(path_).value(), *token);
}

TEST_F(TokenFile, IsOneForAllWhoComeAtOnce) {
  constexpr std::size_t kRanks = 16;
  std::vector<JobToken> tokens(kRanks);
  {
    std::vector<std::jthread> ranks;
    for (auto& token : tokens) ranks.emplace_back([&] { token = token_from_file(path_).value(); });
  }

  EXPECT_EQ(std::set<JobToken>(tokens.begin(), tokens.end()).size(), 1U);
  EXPECT_EQ(std::distance(std::filesystem::directory_iterator(folder_.path()), {}), 1)
      << "no drafts are left";
}

TEST_F(TokenFile, MayBeWrittenByHand) {
  write(std::string(64, '7') + "\n", 0400);

  EXPECT_EQ(to_hex(token_from_file(path_).value()), std::string(64, '7'));
}

TEST_F(TokenFile, ThatOthersCanReadIsRefused) {
  for (const unsigned mode : {0644U, 0640U, 0602U}) {
    write(std::string(64, '7'), mode);

    EXPECT_THAT(token_from_file(path_).error().message, AllOf(HasSubstr(path_), HasSubstr("chmod 600")))
        << mode;
  }
}

TEST_F(TokenFile, ThatHoldsNoTokenIsRefused) {
  for (const std::string text : {"", "7", "0123456789abcdef\n"}) {
    write(text, 0600);

    EXPECT_THAT(token_from_file(path_).error().message,
                AllOf(HasSubstr(path_), HasSubstr("64 hexadecimal digits")));
  }
  write(std::string(65, '7'), 0600);
  EXPECT_FALSE(token_from_file(path_));
}

TEST_F(TokenFile, InNoDirectoryIsAnErrorWithItsName) {
  EXPECT_THAT(token_from_file(folder_.path("none/token")).error().message,
              AllOf(HasSubstr("TROUPE_JOB_TOKEN_FILE"), HasSubstr("none/token"), HasSubstr("No such file")));
}

}  // namespace
}  // namespace troupe::actors
