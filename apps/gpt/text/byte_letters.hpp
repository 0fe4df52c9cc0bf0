#pragma once

#include <optional>
#include <string>
#include <string_view>

namespace troupe::apps::gpt {

/// Vocabularies of byte-level BPE represent bytes as letters, so that they can be written in JSON (GPT-2,
/// encoder.py): printable bytes of Latin-1 stand for themselves, the others, in order, are U+0100, U+0101,
/// ...
std::string letter_of(unsigned char byte);

/// The bytes that such letters in UTF-8 stand for; empty if one is not such a letter.
std::optional<std::string> bytes_of_letters(std::string_view letters);

}  // namespace troupe::apps::gpt
