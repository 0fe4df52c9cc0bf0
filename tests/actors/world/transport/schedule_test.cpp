#include <gtest/gtest.h>

#include <algorithm>
#include <deque>
#include <random>
#include <string>

#include "core/disregard.hpp"
#include "tests/actors/world/transport/pair.hpp"

namespace troupe::actors {
namespace {

using namespace std::chrono_literals;

/// One side as the model knows it.
struct Side {
  TransportMachine* machine = nullptr;
  std::deque<std::byte> wire;  ///< from this side to the other
  std::uint64_t sent = 0;      ///< messages that send() took
  std::uint64_t received = 0;  ///< messages of the other
  bool has_left = false;
  bool ended = false;
  std::uint64_t unacknowledged = 0;
};

/// TR-1 under a random schedule of sends, reads of any size, time, farewells and a break of the wire.
class Schedule {
 public:
  explicit Schedule(std::uint64_t seed) : random_(seed) {
    sides_[0].machine = &pair_.initiator;
    sides_[1].machine = &pair_.acceptor;
  }

  void run() {
    breaks_ = random_() % 3 == 0;
    for (int i = 0, steps = static_cast<int>(20 + random_() % 80); i < steps; ++i) step();
    if (breaks_) break_wire();
    carry_all();
    if (!breaks_ && !any_ended()) sides_[random_() % 2].machine->leave(now_);
    carry_all();
    check_end();
  }

 private:
  void step() {
    Side& side = sides_[random_() % 2];
    switch (random_() % 8) {
      case 0:
      case 1:
      case 2:
        if (side.machine->send(bytes_of(std::to_string(side.sent)), now_)) ++side.sent;
        break;
      case 3:
        now_ += std::chrono::milliseconds(random_() % 300);
        for (Side& each : sides_) each.machine->tick(now_);
        break;
      case 4:
        if (random_() % 20 == 0) side.machine->leave(now_);
        break;
      default:
        carry(random_() % 2, random_() % 40);
    }
  }

  void carry(std::size_t from, std::size_t limit) {
    Side& writer = sides_[from];
    for (std::byte byte : writer.machine->take_output(limit)) writer.wire.push_back(byte);
    std::size_t count = std::min(limit, writer.wire.size());
    std::vector<std::byte> bytes(writer.wire.begin(),
                                 writer.wire.begin() + static_cast<std::ptrdiff_t>(count));
    writer.wire.erase(writer.wire.begin(), writer.wire.begin() + static_cast<std::ptrdiff_t>(count));
    sides_[1 - from].machine->receive(bytes, now_);
    // A wire is closed by whoever has come to the end.
    bool is_done = writer.machine->is_over() && writer.machine->output_bytes() == 0 && writer.wire.empty();
    if (is_done) sides_[1 - from].machine->disconnected("end of file");
    for (std::size_t side : {0U, 1U}) look_at_events(side);
  }

  void carry_all() {
    for (int i = 0; i < 10; ++i) {
      for (std::size_t side : {0U, 1U}) carry(side, SIZE_MAX);
    }
  }

  void break_wire() {
    for (Side& side : sides_) side.wire.clear();
    for (std::size_t side : {0U, 1U}) {
      sides_[side].machine->take_output(SIZE_MAX);
      sides_[side].machine->disconnected("broken");
      look_at_events(side);
    }
  }

  void look_at_events(std::size_t index) {
    Side& side = sides_[index];
    for (const TransportEvent& event : side.machine->take_events()) {
      ASSERT_FALSE(side.ended) << "something came after the end";
      if (auto* received = std::get_if<Received>(&event)) {
        ASSERT_EQ(text_of(received->message), std::to_string(side.received)) << "not in order, or twice";
        ++side.received;
        ASSERT_LE(side.received, sides_[1 - index].sent);
      }
      if (std::holds_alternative<Left>(event)) side.has_left = side.ended = true;
      if (auto* lost = std::get_if<Lost>(&event)) {
        side.ended = true;
        side.unacknowledged = lost->unacknowledged;
      }
    }
  }

  bool any_ended() const { return sides_[0].machine->is_over() || sides_[1].machine->is_over(); }

  void check_end() {
    for (std::size_t index : {0U, 1U}) {
      const Side& side = sides_[index];
      const Side& other = sides_[1 - index];
      ASSERT_TRUE(side.ended) << "nobody was told";
      if (side.has_left) {
        EXPECT_EQ(side.received, other.sent) << "a farewell came before a message";
      } else {
        EXPECT_GE(side.unacknowledged, side.sent - other.received) << "a loss was not known";
      }
    }
  }

  std::mt19937_64 random_;
  Pair pair_;
  Side sides_[2];
  std::chrono::nanoseconds now_{0};
  bool breaks_ = false;
};

TEST(TransportSchedules, EveryMessageArrivesInOrderOrIsKnownLost) {
  for (std::uint64_t seed = 0; seed < 10000; ++seed) {
    Schedule(seed).run();
    ASSERT_FALSE(HasFailure()) << "seed " << seed;
  }
}

TEST(TransportSchedules, ChangedBytesNeverDoMoreThanEndTheConnection) {
  std::mt19937_64 random(11);
  for (int round = 0; round < 5000; ++round) {
    Pair pair;
    if (random() % 2 == 0) pair.join();
    for (int i = 0; i < 3; ++i) {
      core::disregard(pair.initiator.send(bytes_of(std::to_string(i)), pair.now), "half have not joined");
    }
    auto bytes = pair.initiator.take_output(SIZE_MAX);
    if (bytes.empty()) continue;
    bytes[random() % bytes.size()] ^= static_cast<std::byte>(1U << (random() % 8));

    pair.acceptor.receive(bytes, pair.now);
    pair.settle();

    int lost = 0;
    for (const TransportEvent& event : pair.acceptor.take_events())
      lost += std::holds_alternative<Lost>(event);
    ASSERT_EQ(lost, pair.acceptor.is_over() ? 1 : 0) << "round " << round;
  }
}

}  // namespace
}  // namespace troupe::actors
