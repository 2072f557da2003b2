// The C interface: no exception leaves it, and each error leaves its sentence for the calling thread.
#include "../include/edgedecode.h"

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <new>
#include <string>
#include <type_traits>

#include "errors.h"
#include "session.h"

using edgedecode::Error;
using edgedecode::Json;

struct edgedecode_pack {
  std::shared_ptr<edgedecode::Pack> pack;
};
struct edgedecode_session {
  std::shared_ptr<edgedecode::Conversation> session;
};

namespace {

std::string& last_error() {
  thread_local std::string sentence;
  return sentence;
}

constexpr size_t kShownStart = 400, kShownEnd = 200;  // of a sentence that repeats a long text

// A sentence in one line, without the middle of a long one.
std::string shown(std::string sentence) {
  for (char& each : sentence)
    if (static_cast<unsigned char>(each) < 0x20) each = ' ';
  if (sentence.size() <= kShownStart + kShownEnd) return sentence;
  size_t end = sentence.size() - kShownEnd;
  while (end < sentence.size() && (sentence[end] & 0xc0) == 0x80) ++end;
  return edgedecode::start_of(sentence, kShownStart) + " ... " + sentence.substr(end);
}

int failed(int code, const char* sentence) noexcept {
  try {
    last_error() = shown(sentence);
  } catch (...) {
    last_error().clear();
  }
  return code;
}

// The code of a call's failure, or what `call` returns.
template <class Call>
int64_t guarded(const Call& call) noexcept {
  try {
    last_error().clear();
    if constexpr (std::is_void_v<decltype(call())>) return call(), 0;
    else return call();
  } catch (const Error& error) {
    return failed(error.code, error.what());
  } catch (const std::bad_alloc&) {
    return failed(EDGEDECODE_OVER_BUDGET, "the system has no more memory: give a smaller \"memory\" or \"context\"");
  } catch (const std::exception& error) {
    return failed(EDGEDECODE_FAILED, error.what());
  } catch (...) {
    return failed(EDGEDECODE_FAILED, "an unknown error");
  }
}

template <class Call>
char* guarded_json(const Call& call) noexcept {
  char* found = nullptr;
  guarded([&] {
    const std::string text = call().text();
    found = static_cast<char*>(std::malloc(text.size() + 1));
    if (!found) throw std::bad_alloc();
    std::memcpy(found, text.c_str(), text.size() + 1);
  });
  return found;
}

std::string text_of(const char* text) { return text ? text : ""; }

template <class Handle>
Handle& checked(Handle* handle) {
  if (!handle) throw edgedecode::input_error("the handle is null: was it opened?");
  return *handle;
}

// Held by each call: another thread, or the callback, may close the session meanwhile.
std::shared_ptr<edgedecode::Conversation> held(edgedecode_session* session) { return checked(session).session; }

}  // namespace

extern "C" {

const char* edgedecode_version(void) { return EDGEDECODE_VERSION; }

const char* edgedecode_last_error(void) { return last_error().c_str(); }

void edgedecode_free(char* text) { std::free(text); }

char* edgedecode_plan(const char* folder, const char* options) {
  return guarded_json([&] { return edgedecode::Pack::plan(text_of(folder), text_of(options)); });
}

edgedecode_pack* edgedecode_open(const char* folder, const char* options) {
  edgedecode_pack* found = nullptr;
  guarded([&] { found = new edgedecode_pack{edgedecode::Pack::open(text_of(folder), text_of(options))}; });
  return found;
}

void edgedecode_close(edgedecode_pack* pack) {
  if (!pack || pack->pack->forked()) return;  // the memory of a fork's copy goes with the process
  guarded([&] { pack->pack->close(); });
  delete pack;
}

char* edgedecode_info(edgedecode_pack* pack) {
  return guarded_json([&] { return checked(pack).pack->info(); });
}

edgedecode_session* edgedecode_session_open(edgedecode_pack* pack, const char* options) {
  edgedecode_session* found = nullptr;
  guarded([&] {
    found = new edgedecode_session{checked(pack).pack->session(text_of(options))};
  });
  return found;
}

void edgedecode_session_close(edgedecode_session* session) {
  if (!session || session->session->forked()) return;
  guarded([&] {
    session->session->close();
  });
  delete session;
}

int32_t edgedecode_generate(edgedecode_session* session, const char* request, edgedecode_on_text on_text, void* user) {
  return static_cast<int32_t>(guarded([&] {
    return held(session)->generate(text_of(request), [&](const std::string& text) {
      return on_text ? on_text(user, text.data(), text.size()) : 0;
    });
  }));
}

void edgedecode_cancel(edgedecode_session* session) {
  if (session) session->session->cancel();
}

char* edgedecode_stats(edgedecode_session* session) {
  return guarded_json([&] { return held(session)->stats(); });
}

int32_t edgedecode_rewind(edgedecode_session* session, int32_t turns) {
  return static_cast<int32_t>(guarded([&] { held(session)->rewind(turns); }));
}

int64_t edgedecode_trim_memory(edgedecode_pack* pack, int32_t level) {
  return guarded([&] { return checked(pack).pack->trim_memory(level); });
}

int32_t edgedecode_token_bytes(edgedecode_pack* pack, int32_t token, uint8_t* bytes, int32_t most) {
  return static_cast<int32_t>(guarded([&] {
    const edgedecode::Tokenizer& tokenizer = checked(pack).pack->tokenizer();
    const std::string found = (tokenizer.special(token) ? "\xFF" : "") + tokenizer.own_bytes(token);
    if (most > 0) std::memcpy(bytes, found.data(), std::min(found.size(), static_cast<size_t>(most)));
    return static_cast<int64_t>(found.size());
  }));
}

size_t edgedecode_tokenize(const void* pack, const uint8_t* text, size_t size, uint32_t* ids, size_t most) {
  const int64_t count = guarded([&] {
    const auto& open = checked(static_cast<const edgedecode_pack*>(pack));
    const auto found = open.pack->tokenizer().encode({reinterpret_cast<const char*>(text), size}, false);
    std::copy_n(found.begin(), std::min(found.size(), most), ids);
    return static_cast<int64_t>(found.size());
  });
  return static_cast<size_t>(std::max<int64_t>(0, count));
}

int32_t edgedecode_constrain(edgedecode_session* session, const edgedecode_constraint* constraint) {
  return static_cast<int32_t>(guarded([&] { held(session)->constrain(constraint); }));
}

}  // extern "C"
