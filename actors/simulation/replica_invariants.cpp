#include "actors/simulation/replica_invariants.hpp"

#include <fmt/format.h>

#include "actors/roles/machine.hpp"

namespace troupe::actors {

using messages::Role;

void ReplicaInvariants::on_message(const messages::Envelope& envelope) {
  const auto& to = envelope.to;
  const auto rank = to.rank;
  dispatch(envelope.body, Overloaded{[&](const messages::CopyReady& m) {
                                       if (!m.failure.failed) all_[m.sequence].ready.insert(m.rank);
                                     },
                                     [&](const messages::CopiesHeld& m) {
                                       if (!m.failure.failed) all_[m.sequence].held.insert(m.rank);
                                     },
                                     [&](const messages::RoundShared& m) {
                                       if (m.failure.failed) done(rank, m.credit);
                                     },
                                     [&](const messages::RoundWritten& m) { done(rank, m.credit); },
                                     [&](const messages::LocalSaveOver& m) { on(m, envelope.from, to); }});
}

void ReplicaInvariants::on_work(const messages::Address& who, const Work& work) {
  const auto* replica = std::get_if<ReplicaWork>(&work);
  if (replica == nullptr) return;
  const auto rank = who.rank;
  auto handle =
      Overloaded{[&](const OpenExchange& w) {
                   auto& rounds = rounds_[rank];
                   rounds = {{}, w.exchange, 0};
                 },
                 [&](const ReadRound& w) { on(rank, w); }, [&](const ShareRound& w) { on(rank, w); },
                 [&](const TidyCopies& w) { on(rank, w); }, [](const auto&) {}};
  std::visit(handle, *replica);
}

void ReplicaInvariants::on(core::Rank rank, const ReadRound& work) {
  const auto [busy, is_free] = rounds_[rank].busy.try_emplace(work.credit, work.round);
  if (is_free) return;
  violate_(fmt::format("LT-4: rank {} reads round {} into buffer {}, in which round {} still is", rank.value,
                       work.round, work.credit, busy->second));
}

void ReplicaInvariants::on(core::Rank rank, const ShareRound& work) {
  auto& rounds = rounds_[rank];
  if (work.exchange != rounds.exchange || work.round != rounds.shared) {
    violate_(fmt::format("LT-3: rank {} shares round {} of exchange {}, round {} of exchange {} comes next",
                         rank.value, work.round, work.exchange, rounds.shared, rounds.exchange));
  }
  rounds.shared += 1;
}

void ReplicaInvariants::on(core::Rank rank, const TidyCopies& work) {
  const auto& over = all_[work.sequence].over;
  if (over && !over->failure.failed) return;
  violate_(fmt::format("LT-2: rank {} removes what is older than local save {}, which does not count",
                       rank.value, work.sequence));
}

void ReplicaInvariants::on(const messages::LocalSaveOver& over, const messages::Address& from,
                           const messages::Address& to) {
  auto& save = all_[over.sequence];
  const bool decides = from.role == Role::replica_coordinator;
  if (decides && !over.failure.failed && (save.held != save.ready || save.held.empty())) {
    violate_(fmt::format("LT-1: local save {} counts, and {} of {} ranks hold all copies", over.sequence,
                         save.held.size(), save.ready.size()));
  }
  if (!save.over) save.over = over;
  if (!(*save.over == over))
    violate_(fmt::format("LT-2: rank {} hears another end of local save {} than others", to.rank.value,
                         over.sequence));
  if (to.role != Role::trainer) return;
  if (save.told.empty()) saves_.push_back(over);
  if (!save.told.insert(to.rank).second) {
    violate_(fmt::format("LT-2: the trainer of rank {} hears twice of local save {}", to.rank.value,
                         over.sequence));
  }
}

}  // namespace troupe::actors
