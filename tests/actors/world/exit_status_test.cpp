#include "actors/world/exit_status.hpp"

#include <gtest/gtest.h>

namespace troupe::actors {
namespace {

using core::Errc;

// The launcher reads them: whose end was a consequence is never reported as the cause.
TEST(ExitCode, OfARankThatLostPeersMeansConsequences) {
  EXPECT_EQ(exit_code_of({Errc::peer_lost, ""}), 96);
  EXPECT_EQ(exit_code_of({Errc::stale_epoch, ""}), 96);
  EXPECT_EQ(exit_code_of({Errc::timeout, ""}), 96) << "it waited for a rank that did not come";
}

TEST(ExitCode, OfOwnErrorsIsOneOrTwoForArguments) {
  EXPECT_EQ(exit_code_of({Errc::invalid_argument, ""}), 2);
  for (Errc code : {Errc::io, Errc::corrupt, Errc::mismatch, Errc::numeric})
    EXPECT_EQ(exit_code_of({code, ""}), 1) << core::to_string(code);
}

}  // namespace
}  // namespace troupe::actors
