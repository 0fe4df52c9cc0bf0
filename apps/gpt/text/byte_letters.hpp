#pragma once

#include <optional>
#include <string>
#include <string_view>

namespace troupe::apps::gpt {

/// Vocabularies of byte-level BPE write bytes as letters, so that JSON can say them (GPT-2, encoder.py):
/// printable bytes of Latin-1 are themselves, the others, in order, U+0100, U+0101, ...
std::string letter_of(unsigned char byte);

/// The bytes that UTF-8 of such letters means; nothing when one is none of them.
std::optional<std::string> bytes_of_letters(std::string_view letters);

}  // namespace troupe::apps::gpt
