#include "actors/world/endpoint.hpp"

#include <arpa/inet.h>
#include <netinet/in.h>

#include <algorithm>

#include "core/errors.hpp"
#include "core/number.hpp"

namespace troupe::actors {

namespace {

bool is_ipv6(const std::string& text) {
  in6_addr ignored{};
  return ::inet_pton(AF_INET6, text.substr(0, text.find('%')).c_str(), &ignored) == 1;
}

core::Result<Endpoint> not_an_endpoint(std::string_view text) {
  return core::fail(
      core::Errc::invalid_argument,
      "expected HOST, HOST:PORT, or [ADDRESS]:PORT for IPv6, with a port from 0 to 65535; found "
      "{}",
      core::quoted_excerpt(std::string(text)));
}

}  // namespace

core::Result<Endpoint> parse_endpoint(std::string_view text) {
  Endpoint endpoint;
  std::string_view port;
  bool has_port = false;
  if (text.starts_with('[')) {
    const auto close = text.find(']');
    if (close == std::string_view::npos) return not_an_endpoint(text);
    endpoint.host = text.substr(1, close - 1);
    const auto rest = text.substr(close + 1);
    if (!is_ipv6(endpoint.host) || (!rest.empty() && rest[0] != ':')) return not_an_endpoint(text);
    has_port = !rest.empty();
    if (has_port) port = rest.substr(1);
  } else if (std::count(text.begin(), text.end(), ':') > 1) {
    endpoint.host = text;
    if (!is_ipv6(endpoint.host)) return not_an_endpoint(text);
  } else {
    const auto colon = std::min(text.find(':'), text.size());
    endpoint.host = text.substr(0, colon);
    has_port = colon < text.size();
    if (has_port) port = text.substr(colon + 1);
  }
  if (endpoint.host.empty()) return not_an_endpoint(text);
  if (!has_port) return endpoint;
  const auto number = core::parse_number<int>(port, {0, 65535});
  if (!number) return not_an_endpoint(text);
  endpoint.port = static_cast<std::uint16_t>(*number);
  return endpoint;
}

core::Result<std::string> parse_host(std::string_view text) {
  auto endpoint = parse_endpoint(text);
  if (endpoint && !endpoint->port) return std::move(endpoint->host);
  return core::fail(core::Errc::invalid_argument, "expected a host's name or address, found {}",
                    core::quoted_excerpt(std::string(text)));
}

std::string to_string(const Endpoint& endpoint) {
  const bool in_brackets = endpoint.port && endpoint.host.find(':') != std::string::npos;
  const std::string host = in_brackets ? "[" + endpoint.host + "]" : endpoint.host;
  return endpoint.port ? host + ":" + std::to_string(*endpoint.port) : host;
}

}  // namespace troupe::actors
