#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace troupe::core {

/// A moment that some work of a rank reaches and other work waits for. Unless it says otherwise, there is one
/// for each flat tensor.
enum class Mark : std::uint8_t {
  prepared,   ///< the rank's own sums of gradients are complete
  exchanged,  ///< the last collective has delivered its data
  reduced,    ///< the sums of what it delivered are complete
  cleared,    ///< full gradients are zeros again, for the next lane; of a slot, where they are in a pool
  updated,    ///< the optimizer has stepped this rank's part, or its values were loaded
  released,   ///< of a slot of parameters: the trainer has read them
  staged,     ///< of a staging credit: what it holds was read
  measured,   ///< of the step: the words of the verdict are written
};
std::string_view name_of(Mark mark) noexcept;

/// What comes one after another: an entry's stream, or the sums that follow what streams bring.
enum class Queue : std::uint8_t { stream, sums };
std::string_view name_of(Queue queue) noexcept;

/// Memory that an entry reads or writes, of its tensor and its slot.
enum class Place : std::uint8_t {
  none,
  kept_parameters,  ///< as the rank keeps them between steps
  full_parameters,  ///< of a unit on demand
  sums,             ///< gradients as they are kept between rounds; the finished sum is among them
  full_gradients,   ///< of a round
  carried,          ///< sums on their way from one axis to the next
  sent,             ///< of a staging credit: what goes to others
  arrived,          ///< of a staging credit: what came from others
  blocks,           ///< parameters in microscaling blocks, one member's after another
  verdict,
};
std::string_view name_of(Place place) noexcept;

enum class Action : std::uint8_t {
  wait,           ///< until `mark`
  record,         ///< `mark`
  reserve,        ///< takes the next staging credit and waits until what it holds was read
  carry,          ///< takes the next credit for sums that go on to another axis
  note,           ///< the moment at which the tensor's gradients were last reduced
  count,          ///< members put in different numbers of elements
  cut_sums,       ///< the rank's part arrives in the staging credit
  cut_part,       ///< a chunk: that of the rank's part goes, and that of each member arrives
  cut_gather,     ///< a chunk of each member's part
  cut_exchange,   ///< a chunk of each receiver's part
  send,           ///< the receivers' parts of this rank's sums go, one after another, as the wire has them
  pack_part,      ///< this rank's part goes, as the wire has it
  pack_blocks,    ///< this rank's part goes in blocks
  keep,           ///< nobody else has sums of this part: this rank's stand for what arrives
  post,           ///< the collective, from one place to another
  post_blocks,    ///< the same, of blocks
  accumulate,     ///< what arrived is added to the sums
  add_tree,       ///< what arrived, and what rests, is added in the order of the tree
  add_in_order,   ///< the same, one after the other
  add_members,    ///< what arrived from each member is added, in their order
  unpack,         ///< what arrived takes its place, in the tensor's dtype
  unpack_blocks,  ///< what arrived in blocks takes its place
  unpack_others,  ///< the same, but for this rank's own
  round,          ///< sums are rounded to the wire's dtype
  measure,        ///< the squares of sums, for norms
  clear,          ///< full gradients become zeros
  write_verdict,  ///< this rank's words of it
  read_verdict,   ///< what all said goes to the host, and to who decides
  merged,         ///< tells the trainer that the lane's gradients have left their memory
};
inline constexpr std::size_t kActions = static_cast<std::size_t>(Action::merged) + 1;
std::string_view name_of(Action action) noexcept;

struct RecipeStep {
  Action action = Action::wait;
  Queue queue = Queue::stream;
  Mark mark = Mark::prepared;  ///< of `wait` and `record`
  Place from = Place::none;
  Place to = Place::none;
  bool scaled = false;  ///< of additions: the sum is multiplied by the step's factor

  friend bool operator==(const RecipeStep&, const RecipeStep&) = default;
};

/// What carrying out an entry takes, one step after another: what it waits for, reads, writes and records,
/// and which staging credit it takes and gives back.
struct Recipe {
  std::vector<RecipeStep> before{};
  std::vector<RecipeStep> each_chunk{};
  std::vector<RecipeStep> after{};

  friend bool operator==(const Recipe&, const Recipe&) = default;
};

/// For people: "wait prepared; post sums to arrived; ...", what is done for each chunk in brackets.
std::string describe(const RecipeStep& step);
std::string describe(const Recipe& recipe);

}  // namespace troupe::core
