#include <fmt/format.h>
#include <fmt/ranges.h>
#include <gtest/gtest.h>

#include <deque>
#include <functional>
#include <iterator>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "actors/roles/checkpoint_coordinator.hpp"
#include "actors/roles/checkpoint_writer.hpp"
#include "actors/roles/parameter_shard.hpp"
#include "actors/simulation/checkpoint_invariants.hpp"
#include "actors/world/random.hpp"
#include "core/checkpoint/manifest.hpp"
#include "core/indices.hpp"

namespace troupe::actors {
namespace {

using messages::Address;
using messages::Envelope;
using messages::Role;

constexpr std::uint64_t kSeeds = 600;
constexpr std::uint32_t kBuckets = 3;
constexpr std::int64_t kSteps = 5;

template <class Queue>
auto take(Queue& queue) {
  auto first = std::move(queue.front());
  queue.pop_front();
  return first;
}

/// Everybody who takes part in saves, each message and each work waiting in its queue until chance takes it:
/// in the receiver's mailbox, and between two ranks on the link before that.
class Company {
 public:
  explicit Company(std::uint64_t seed)
      : draw_(seed, "interleaving_test", "events"),
        world_(1 + static_cast<int>(draw_.below(4))),
        invariants_([this](std::string sentence) { problems.push_back(std::move(sentence)); }) {
    const double rates[] = {0, 0.02, 0.2};
    io_failure_ = rates[draw_.below(3)];
    impatience_ = rates[draw_.below(3)] / 20;
    spawn(coordinator_address(), std::make_unique<CheckpointCoordinatorMachine>(CheckpointCoordinatorConfig{
                                     {world_},
                                     std::chrono::seconds(1),
                                     draw_.below(2) == 0 ? core::WhenBusy::queue : core::WhenBusy::refuse,
                                     seed}));
    const auto credits = 1 + draw_.below(3);
    const bool sharded = draw_.below(2) == 0;
    for (int rank = 0; rank < world_; ++rank) {
      auto config = writer_of(rank, sharded);
      config.staging.assign(credits, 16);
      spawn({{rank}, Role::checkpoint_writer, 0}, std::make_unique<CheckpointWriterMachine>(config));
      for (const auto bucket : core::indices<core::BucketIndex>(kBuckets)) {
        spawn({{rank}, Role::parameter_shard, bucket.value},
              std::make_unique<ParameterShardMachine>(ParameterShardConfig{{rank}, bucket, {}}));
      }
    }
    trainers_.resize(static_cast<std::size_t>(world_));
  }

  /// Waits until nothing is left to happen.
  void run() {
    for (int events = 0; events < 20'000; ++events) {
      if (!timers_.empty() && draw_.happens(impatience_)) {
        fire();
        continue;
      }
      std::vector<std::function<void()>> possible;
      for (auto& [link, queue] : links_) {
        if (!queue.empty()) possible.emplace_back([this, &queue] { arrive(take(queue)); });
      }
      for (auto& [address, queue] : mailboxes_) {
        if (!queue.empty()) possible.emplace_back([this, &queue] { deliver(take(queue)); });
      }
      for (auto& [rank, queue] : stages_) {
        if (!queue.empty()) possible.emplace_back([this, r = rank, &queue] { stage(r, take(queue)); });
      }
      for (auto& [rank, queue] : jobs_) {
        if (!queue.empty()) possible.emplace_back([this, r = rank, &queue] { work(r, take(queue)); });
      }
      for (int rank = 0; rank < world_; ++rank) {
        if (may_go_on(rank)) possible.emplace_back([this, rank] { go_on(rank); });
      }
      if (possible.empty()) return;
      possible[draw_.below(static_cast<std::uint32_t>(possible.size()))]();
    }
    problems.emplace_back("it does not end");
  }

  /// After run(): everybody has what they waited for.
  void check_end() {
    for (int rank = 0; rank < world_; ++rank) {
      const auto& trainer = trainers_[static_cast<std::size_t>(rank)];
      if (trainer.step != kSteps) problems.push_back(fmt::format("rank {} stands still", rank));
      if (trainer.ends != trainer.saves) problems.push_back(fmt::format("rank {} hears no end", rank));
    }
    for (const auto& [address, machine] : machines_) {
      if (!machine->waiting_for().empty())
        problems.push_back(to_string(address) + " waits for " + machine->waiting_for());
    }
  }
  int committed() const { return committed_; }

  std::vector<std::string> problems;

 private:
  struct Trainer {
    std::int64_t step = 0;
    std::uint32_t published = kBuckets;
    std::uint64_t saves = 0;
    std::uint64_t ends = 0;
    bool may_save = true;
  };

  static Address coordinator_address() { return {core::Rank{0}, Role::checkpoint_coordinator, 0}; }

  CheckpointWriterConfig writer_of(int rank, bool sharded) const {
    CheckpointWriterConfig config;
    config.rank = core::Rank{rank};
    config.buckets = kBuckets;
    config.chunk_bytes = 16;
    config.hold_deadline = std::chrono::seconds(1);
    for (std::uint32_t t = 0; t < 4; ++t) {
      const core::Box mine{{rank * 12 / world_}, {(rank + 1) * 12 / world_ - rank * 12 / world_}};
      config.structure.tensors.push_back({fmt::format("t{}", t), core::DType::f32, {12}});
      config.structure.pieces.push_back({t, sharded ? mine : core::Box::whole({12})});
      config.bucket_of.push_back({t % (kBuckets - 1)});  // one bucket has nothing to save
    }
    return config;
  }

  void spawn(Address address, std::unique_ptr<Machine> machine) { machines_[address] = std::move(machine); }

  void post(Address from, Address to, messages::Message body) {
    Envelope envelope{from, to, core::Epoch{1}, std::move(body)};
    invariants_.on_message(envelope);
    if (from.rank == to.rank) return arrive(std::move(envelope));
    links_[{from.rank, to.rank}].push_back(std::move(envelope));
  }

  void arrive(Envelope envelope) { mailboxes_[envelope.to].push_back(std::move(envelope)); }

  void deliver(const Envelope& envelope) {
    if (envelope.to.role == Role::trainer) return to_trainer(envelope);
    const auto found = machines_.find(envelope.to);
    if (found == machines_.end()) return;
    Outbox outbox;
    found->second->receive(envelope, outbox);
    carry_out(envelope.to, outbox);
  }

  void fire() {
    auto timer = timers_.begin();
    std::advance(timer, draw_.below(static_cast<std::uint32_t>(timers_.size())));
    const auto self = *timer;
    timers_.erase(timer);
    Outbox outbox;
    machines_.at(self)->timer(0, outbox);
    carry_out(self, outbox);
  }

  void carry_out(const Address& self, Outbox& outbox) {
    for (auto& effect : outbox.effects()) {
      if (auto* send = std::get_if<Send>(&effect)) post(self, send->to, std::move(send->body));
      if (std::holds_alternative<ArmTimer>(effect)) timers_.insert(self);
      if (std::holds_alternative<CancelTimer>(effect)) timers_.erase(self);
      const auto* perform = std::get_if<Perform>(&effect);
      if (perform != nullptr) begin_work(self, perform->work);
    }
  }

  void begin_work(const Address& self, const Work& work) {
    invariants_.on_work(self, work);
    if (const auto* step = work_if<StepShard>(work))
      post(self, self, messages::ShardStepped{step->step, step->bucket});
    const auto* save = std::get_if<CheckpointWork>(&work);
    if (save == nullptr) return;
    if (const auto* open = std::get_if<OpenSave>(save))
      shards_[{self.rank.value, open->sequence}] = open->pieces.size();
    (std::holds_alternative<StageChunk>(*save) ? stages_ : jobs_)[self.rank.value].push_back(*save);
  }

  void stage(int rank, const CheckpointWork& work) {
    const auto& chunk = std::get<StageChunk>(work);
    say(rank, Role::checkpoint_writer, messages::ChunkStaged{chunk.sequence, chunk.chunk, chunk.credit});
  }

  void work(int rank, const CheckpointWork& work) {
    messages::Failure failure;
    if (draw_.happens(io_failure_)) failure = {true, core::Errc::io, "no luck"};
    if (const auto* w = std::get_if<WriteChunk>(&work)) {
      say(rank, Role::checkpoint_writer, messages::ChunkWritten{w->sequence, w->chunk, w->credit, failure});
    } else if (const auto* f = std::get_if<FinishFiles>(&work)) {
      std::vector<std::uint64_t> hashes(failure.failed ? 0 : shards_[{rank, f->sequence}]);
      say(rank, Role::checkpoint_writer, messages::FilesDurable{f->sequence, {rank}, hashes, failure});
    } else if (const auto* m = std::get_if<MakeSaveDirectory>(&work)) {
      say(rank, Role::checkpoint_coordinator, messages::SaveDirectoryMade{m->sequence, failure});
    } else if (const auto* c = std::get_if<CommitSave>(&work)) {
      if (auto manifest = core::parse_manifest(c->manifest); !manifest)
        problems.push_back(manifest.error().message);
      committed_ += failure.failed ? 0 : 1;
      say(rank, Role::checkpoint_coordinator, messages::SaveCommitDone{c->sequence, failure});
    }
  }

  void say(int rank, Role role, messages::Message message) {
    const Address self{{rank}, role, 0};
    post(self, self, std::move(message));
  }

  bool may_go_on(int rank) const {
    const auto& trainer = trainers_[static_cast<std::size_t>(rank)];
    return trainer.step < kSteps && trainer.published == kBuckets;
  }

  /// The next step, or a save before it. All ranks save after the same steps, by the draw of the run.
  void go_on(int rank) {
    auto& trainer = trainers_[static_cast<std::size_t>(rank)];
    const Address self{{rank}, Role::trainer, 0};
    if (std::exchange(trainer.may_save, false) && trainer.step > 0) {
      messages::SaveBegan begun{++trainer.saves, {trainer.step - 1}, "{}", "null", "[]"};
      for (const auto bucket : core::indices<core::BucketIndex>(kBuckets))
        post(self, {{rank}, Role::parameter_shard, bucket.value}, begun);
      post(self, {{rank}, Role::checkpoint_writer, 0}, begun);
      return;
    }
    trainer.may_save = true;
    trainer.published = 0;
    messages::StepDecided decided;
    decided.step = core::Step{trainer.step++};
    decided.commit = true;
    for (const auto bucket : core::indices<core::BucketIndex>(kBuckets))
      post(self, {{rank}, Role::parameter_shard, bucket.value}, decided);
  }

  void to_trainer(const Envelope& envelope) {
    auto& trainer = trainers_[static_cast<std::size_t>(envelope.to.rank.value)];
    trainer.published += std::holds_alternative<messages::Published>(envelope.body) ? 1 : 0;
    trainer.ends += std::holds_alternative<messages::SaveOver>(envelope.body) ? 1 : 0;
  }

  RandomStream draw_;
  int world_;
  CheckpointInvariants invariants_;
  double io_failure_ = 0;
  double impatience_ = 0;
  std::map<Address, std::unique_ptr<Machine>> machines_;
  std::map<Address, std::deque<Envelope>> mailboxes_;
  std::map<std::pair<core::Rank, core::Rank>, std::deque<Envelope>> links_;
  std::map<int, std::deque<CheckpointWork>> stages_;  ///< of each rank's staging stream
  std::map<int, std::deque<CheckpointWork>> jobs_;    ///< of each rank's I/O worker
  std::map<std::pair<int, std::uint64_t>, std::size_t> shards_;
  std::vector<Trainer> trainers_;
  std::set<Address> timers_;  ///< whose only timer is armed
  int committed_ = 0;
};

TEST(Saves, NeitherHangNorBreakInvariantsInAnyEventOrder) {
  int committed = 0;
  for (std::uint64_t seed = 0; seed < kSeeds; ++seed) {
    Company company(seed);

    company.run();
    company.check_end();

    ASSERT_TRUE(company.problems.empty())
        << "seed " << seed << ": " << fmt::format("{}", fmt::join(company.problems, "\n"));
    committed += company.committed();
  }

  EXPECT_GT(committed, static_cast<int>(kSeeds)) << "most saves should succeed";
}

}  // namespace
}  // namespace troupe::actors
