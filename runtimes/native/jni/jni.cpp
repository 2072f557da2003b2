// The library for Java and Kotlin: the `external` functions of `edgedecode.Native`. Texts are UTF-8 bytes, because
// JNI's own strings are modified UTF-8, which has no characters beyond the basic plane. Java holds numbers, not
// addresses: a closed handle is an error there, and one that is closed while it is used lives until that call is over.
#include <jni.h>

#include <cstring>
#include <map>
#include <memory>
#include <mutex>
#include <new>
#include <string>

#include "../include/edgedecode.h"
#include "../src/text/utf8.h"

namespace {

constexpr const char* kState = "java/lang/IllegalStateException";
constexpr const char* kArgument = "java/lang/IllegalArgumentException";

// Classes of the platform only: an app's optimizer renames its own. The sentence shows what JNI's strings lack as '?'.
void raise(JNIEnv* env, const char* name, const std::string& sentence) {
  if (env->ExceptionCheck()) return;
  std::string shown;
  for (size_t place = 0; place < sentence.size();) {
    const auto next = edgedecode::utf8_at(sentence, place);
    const bool has = next.kind == edgedecode::Utf8::kCharacter && next.length < 4 && sentence[place];
    shown += has ? sentence.substr(place, next.length) : "?";
    place += next.length;
  }
  if (jclass found = env->FindClass(name)) env->ThrowNew(found, shown.c_str());
}

struct Refused {
  const char* name;
  std::string sentence;
};

// Open packs or sessions by their number.
template <class Handle, void (*Close)(Handle*)>
class Open {
 public:
  jlong add(Handle* handle) {
    if (!handle) throw Refused{kState, edgedecode_last_error()};
    std::shared_ptr<Handle> held(handle, Close);
    const std::lock_guard<std::mutex> lock(mutex_);
    open_[++last_] = std::move(held);
    return last_;
  }
  std::shared_ptr<Handle> find(jlong number) {
    const std::lock_guard<std::mutex> lock(mutex_);
    const auto found = open_.find(number);
    if (found == open_.end()) throw Refused{kState, "it is closed"};
    return found->second;
  }
  std::shared_ptr<Handle> take(jlong number) {
    const std::lock_guard<std::mutex> lock(mutex_);
    const auto found = open_.find(number);
    if (found == open_.end()) return nullptr;
    auto held = std::move(found->second);
    open_.erase(found);
    return held;
  }

 private:
  std::mutex mutex_;
  std::map<jlong, std::shared_ptr<Handle>> open_;
  jlong last_ = 0;
};

auto& packs() {
  static auto& found = *new Open<edgedecode_pack, edgedecode_close>();  // never destroyed: threads may outlive main
  return found;
}

auto& sessions() {
  static auto& found = *new Open<edgedecode_session, edgedecode_session_close>();
  return found;
}

// What `call` returns; 0 or null with a Java exception if it fails.
template <class Call>
auto guarded(JNIEnv* env, const Call& call) noexcept -> decltype(call()) {
  try {
    return call();
  } catch (const Refused& error) {
    raise(env, error.name, error.sentence);
  } catch (const std::bad_alloc&) {
    raise(env, "java/lang/OutOfMemoryError", "the system has no more memory");
  } catch (...) {
    raise(env, kState, "an unknown error");
  }
  return decltype(call())();
}

std::string text_of(JNIEnv* env, jbyteArray given) {
  if (!given) throw Refused{kArgument, "a text is null"};
  std::string found(static_cast<size_t>(env->GetArrayLength(given)), '\0');
  env->GetByteArrayRegion(given, 0, static_cast<jsize>(found.size()), reinterpret_cast<jbyte*>(&found[0]));
  if (found.find('\0') != std::string::npos)
    throw Refused{kArgument, "a text has a character 0, which JSON writes as \\u0000 and no path has"};
  return found;
}

jbyteArray bytes_of(JNIEnv* env, const char* text, size_t size) {
  jbyteArray found = env->NewByteArray(static_cast<jsize>(size));
  if (found) env->SetByteArrayRegion(found, 0, static_cast<jsize>(size), reinterpret_cast<const jbyte*>(text));
  return found;  // null: Java's memory is full, and the exception is thrown
}

// Takes over a text of the library.
jbyteArray result(JNIEnv* env, char* text) {
  if (!text) throw Refused{kState, edgedecode_last_error()};
  const std::unique_ptr<char, void (*)(char*)> held(text, edgedecode_free);
  return bytes_of(env, text, std::strlen(text));
}

int64_t counted(int64_t found) {
  const char* name = found == EDGEDECODE_CANCELLED ? "java/util/concurrent/CancellationException"
                     : found == EDGEDECODE_BAD_INPUT ? kArgument : kState;
  if (found < 0) throw Refused{name, edgedecode_last_error()};
  return found;
}

struct Listener {
  JNIEnv* env;
  jobject callback;  // a java.util.function.Predicate of bytes: whether the answer goes on
  jmethodID test;
};

// An exception of the callback ends the answer, and is thrown when the answer's call returns to Java.
int on_text(void* user, const char* text, size_t size) {
  const auto* to = static_cast<const Listener*>(user);
  if (to->env->ExceptionCheck()) return 1;
  jbyteArray piece = bytes_of(to->env, text, size);
  if (!piece) return 1;
  const bool more = to->env->CallBooleanMethod(to->callback, to->test, piece) == JNI_TRUE;
  const bool thrown = to->env->ExceptionCheck();
  to->env->DeleteLocalRef(piece);
  return thrown || !more;
}

}  // namespace

#define NATIVE(type, name) extern "C" JNIEXPORT type JNICALL Java_edgedecode_Native_##name

NATIVE(jbyteArray, plan)(JNIEnv* env, jclass, jbyteArray folder, jbyteArray options) {
  return guarded(env, [&] {
    return result(env, edgedecode_plan(text_of(env, folder).c_str(), text_of(env, options).c_str()));
  });
}

NATIVE(jlong, open)(JNIEnv* env, jclass, jbyteArray folder, jbyteArray options) {
  return guarded(env, [&] {
    return packs().add(edgedecode_open(text_of(env, folder).c_str(), text_of(env, options).c_str()));
  });
}

NATIVE(jbyteArray, info)(JNIEnv* env, jclass, jlong pack) {
  return guarded(env, [&] { return result(env, edgedecode_info(packs().find(pack).get())); });
}

NATIVE(jlong, trim)(JNIEnv* env, jclass, jlong pack, jint level) {
  return guarded(env, [&] { return counted(edgedecode_trim_memory(packs().find(pack).get(), level)); });
}

NATIVE(void, close)(JNIEnv* env, jclass, jlong pack) {
  guarded(env, [&] { return packs().take(pack) != nullptr; });
}

NATIVE(jlong, session)(JNIEnv* env, jclass, jlong pack, jbyteArray options) {
  return guarded(env, [&] {
    return sessions().add(edgedecode_session_open(packs().find(pack).get(), text_of(env, options).c_str()));
  });
}

NATIVE(jint, generate)(JNIEnv* env, jclass, jlong session, jbyteArray request, jobject callback) {
  return guarded(env, [&] {
    if (!callback) throw Refused{kArgument, "the callback is null"};
    const auto held = sessions().find(session);
    const std::string text = text_of(env, request);
    jclass type = env->GetObjectClass(callback);
    Listener to{env, callback, type ? env->GetMethodID(type, "test", "(Ljava/lang/Object;)Z") : nullptr};
    if (!to.test) return jint{0};  // with Java's own exception
    const int32_t count = edgedecode_generate(held.get(), text.c_str(), on_text, &to);
    return env->ExceptionCheck() ? jint{0} : static_cast<jint>(counted(count));
  });
}

NATIVE(void, cancel)(JNIEnv* env, jclass, jlong session) {
  guarded(env, [&] { return edgedecode_cancel(sessions().find(session).get()), true; });
}

NATIVE(jbyteArray, stats)(JNIEnv* env, jclass, jlong session) {
  return guarded(env, [&] { return result(env, edgedecode_stats(sessions().find(session).get())); });
}

NATIVE(void, rewind)(JNIEnv* env, jclass, jlong session, jint turns) {
  guarded(env, [&] { return counted(edgedecode_rewind(sessions().find(session).get(), turns)); });
}

NATIVE(void, closeSession)(JNIEnv* env, jclass, jlong session) {
  guarded(env, [&] {
    const auto held = sessions().take(session);
    if (held) edgedecode_cancel(held.get());  // a running answer ends, and lets go of the session
    return true;
  });
}
