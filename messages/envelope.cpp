#include "messages/envelope.hpp"

namespace troupe::messages {

Message::Message() noexcept = default;
Message::Message(const Message& other) = default;
Message::Message(Message&& other) noexcept = default;
Message& Message::operator=(const Message& other) = default;
Message& Message::operator=(Message&& other) noexcept = default;
Message::~Message() = default;

bool operator==(const Message& left, const Message& right) {
  return static_cast<const AnyMessage&>(left) == static_cast<const AnyMessage&>(right);
}

bool operator==(const Envelope& left, const Envelope& right) {
  return left.from == right.from && left.to == right.to && left.epoch == right.epoch &&
         left.body == right.body;
}

}  // namespace troupe::messages
