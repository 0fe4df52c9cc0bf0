#include "apps/troupe/launch/nodes/messages.hpp"

#include <cstddef>
#include <nlohmann/json.hpp>
#include <optional>
#include <utility>

#include "core/errors.hpp"
#include "core/number.hpp"

namespace troupe::actors {

NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(LauncherHello, version, host, instance, job, node, is_numbered, running,
                                   started, free_ports, ranks, fewest_ranks, spares, settings, program)

}  // namespace troupe::actors

namespace troupe::apps {

using Json = nlohmann::json;

NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(NotStarted, generation, slot, error)
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(Exited, generation, slot, code, signal, pid, error, meaning, last_lines)
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(Members, slots, epochs, states, step)
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(FreePort, number)
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(Cleared, generation)
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(Signalled, signal)
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(Greeting, host)
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(Refused, reason, may_try_again)
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(Welcome, job, node, nodes, first_slot, world, keeps_processes, has_journal,
                                   max_restarts, term_timeout_seconds, line)
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(Begin, generation, is_anew, master_addr, master_port, control_host,
                                   control_port, fence_token, slots, nodes, lines)
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(Start, slot, rank)
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(WaitForMore, generation)
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(Signal, generation, slot, signal, group)
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(Failed, generation, text, line)
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(Ended, generation, lines)
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(JobOver, exit_code, line, report)
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(Notice, line)

namespace {

/// In the order of the variant.
constexpr const char* kNames[] = {"hello",     "not started", "exited",  "members", "free port", "cleared",
                                  "signalled", "greeting",    "refused", "welcome", "begin",     "start",
                                  "wait",      "signal",      "failed",  "ended",   "over",      "notice"};
static_assert(std::size(kNames) == std::variant_size_v<NodeMessage>);

template <std::size_t... kIndex>
std::optional<NodeMessage> read(const std::string& name, const Json& body, std::index_sequence<kIndex...>) {
  std::optional<NodeMessage> found;
  const auto read_one = [&]<std::size_t kOne>(std::integral_constant<std::size_t, kOne>) {
    if (name == kNames[kOne]) found = body.get<std::variant_alternative_t<kOne, NodeMessage>>();
  };
  (read_one(std::integral_constant<std::size_t, kIndex>{}), ...);
  return found;
}

}  // namespace

std::string to_text(const NodeMessage& message) {
  Json body;
  std::visit([&](const auto& each) { body = each; }, message);
  const Json whole = {{"say", kNames[message.index()]}, {"body", std::move(body)}};
  // What ranks write need not be UTF-8.
  return whole.dump(-1, ' ', false, Json::error_handler_t::replace);
}

core::Result<NodeMessage> message_from_text(std::string_view text) {
  try {
    const Json whole = Json::parse(text);
    auto found = read(whole.at("say").get<std::string>(), whole.at("body"),
                      std::make_index_sequence<std::variant_size_v<NodeMessage>>());
    if (found) return std::move(*found);
  } catch (const Json::exception&) {
    // Ends in the same complaint.
  }
  return core::fail(core::Errc::corrupt, "expected a launcher's message, found {}",
                    core::quoted_excerpt(text));
}

}  // namespace troupe::apps
