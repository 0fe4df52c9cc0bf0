#include "actors/world/exit_status.hpp"

#include <gtest/gtest.h>

namespace troupe::actors {
namespace {

using core::Errc;

// The launcher reads them: whose end was a consequence is never reported as the cause.
TEST(ExitCode, OfARankThatLostAPeerIsThatOfAConsequence) {
  EXPECT_EQ(exit_code_of({Errc::peer_lost, ""}), 96);
  EXPECT_EQ(exit_code_of({Errc::stale_epoch, ""}), 96);
}

TEST(ExitCode, OfAnErrorOfItsOwnIsOneOrTwoForItsArguments) {
  EXPECT_EQ(exit_code_of({Errc::invalid_argument, ""}), 2);
  for (Errc code : {Errc::io, Errc::corrupt, Errc::mismatch, Errc::timeout, Errc::numeric})
    EXPECT_EQ(exit_code_of({code, ""}), 1) << core::to_string(code);
}

}  // namespace
}  // namespace troupe::actors
