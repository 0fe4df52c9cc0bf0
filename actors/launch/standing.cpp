#include "actors/launch/standing.hpp"

#include <cstddef>

namespace troupe::actors {

using State = Membership::State;

Standing standing_of(const std::vector<int>& slots, core::Epoch epoch, const DeclaredIn& declared) {
  Standing standing{true, true};
  for (const int slot : slots) {
    const auto member = declared(slot);
    standing.is_formed &= member && member->epoch == epoch && member->state != State::forming &&
                          member->state != State::stands_by && member->state != State::given_up;
    standing.all_stay &= member && member->state != State::left;
  }
  return standing;
}

std::vector<bool> waiting_of(const std::vector<int>& slots, core::Epoch epoch, const DeclaredIn& declared) {
  std::vector<bool> waiting(slots.size(), false);
  int others = 0;
  for (std::size_t rank = slots.size(); rank-- > 0 && others < 2;) {
    const auto member = declared(slots[rank]);
    waiting[rank] = member && member->epoch == epoch &&
                    (member->state == State::waiting || member->state == State::given_up);
    others += waiting[rank] ? 0 : 1;
  }
  return waiting;
}

std::vector<bool> standing_by(const std::vector<int>& slots, const DeclaredIn& declared) {
  std::vector<bool> found;
  for (const int slot : slots) {
    const auto member = declared(slot);
    found.push_back(member && member->state == State::stands_by);
  }
  return found;
}

}  // namespace troupe::actors
