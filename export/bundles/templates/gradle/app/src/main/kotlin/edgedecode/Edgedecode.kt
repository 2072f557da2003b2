package edgedecode

import java.util.function.Predicate

/**
 * A folder that `edgedecode package` wrote, open for conversations. Any thread may use it.
 *
 * [options], requests and results are JSON as `edgedecode.h` describes them; [json] writes them. What fails throws with
 * the sentence that the command line would print: IllegalArgumentException for a wrong request, else
 * IllegalStateException, also for options, or when a call comes after [close].
 */
class Edgedecode(folder: String, options: String = "{}") : AutoCloseable {
    private val pack = Native.open(folder.toByteArray(), options.toByteArray())

    /** Name, context, models, drafters, and memory by holder. */
    fun info(): String = String(Native.info(pack))

    /** Open a conversation with memory of its own. */
    fun session(options: String = "{}") = Session(Native.session(pack, options.toByteArray()))

    /**
     * Give memory back at a level of Android's `onTrimMemory`; returns the bytes. No text changes.
     *
     * An app in the background gives back its drafts, until it opens the folder again, and the contexts of idle
     * conversations, which their next answers read again.
     */
    fun onTrimMemory(level: Int): Long = Native.trim(pack, steps(level))

    /** Close the conversations too. Running answers are cancelled, and this waits for the end of their rounds. */
    override fun close() = Native.close(pack)

    /** A conversation. Its calls wait for each other, except [cancel] and [close]. */
    class Session internal constructor(private val session: Long) : AutoCloseable {
        /**
         * Answer, in this thread; return the number of tokens.
         *
         * [onText] gets pieces of whole characters, and ends the answer with false or an exception, which is thrown
         * here. Throws java.util.concurrent.CancellationException if the answer was cancelled; the conversation keeps
         * what was written.
         */
        fun generate(request: String, onText: (String) -> Boolean): Int =
            Native.generate(session, request.toByteArray(), Predicate { onText(String(it)) })

        /** End the running answer, or else the next one, after a round; from any thread. */
        fun cancel() = Native.cancel(session)

        /** Counts, ids and times of the last answer. */
        fun stats(): String = String(Native.stats(session))

        /** Forget all but the first turns. */
        fun rewind(turns: Int) = Native.rewind(session, turns)

        /** Cancel a running answer, whose [generate] then frees the memory, or free it now. */
        override fun close() = Native.closeSession(session)
    }

    companion object {
        /** How much memory opening would take, by holder; opens nothing. */
        fun plan(folder: String, options: String = "{}") =
            String(Native.plan(folder.toByteArray(), options.toByteArray()))

        /** Write a JSON object. Values: texts, numbers, truths, null, and lists and maps of them. */
        fun json(vararg fields: Pair<String, Any?>) = written(fields.toMap())

        private fun written(value: Any?): String = when (value) {
            null, is Number, is Boolean -> value.toString()
            is Map<*, *> ->
                value.entries.joinToString(",", "{", "}") { (name, it) -> "${quoted(name.toString())}:${written(it)}" }
            is List<*> -> value.joinToString(",", "[", "]") { written(it) }
            else -> quoted(value.toString())
        }

        private fun quoted(text: String) = text.asIterable().joinToString("", "\"", "\"") {
            if (it < ' ' || it == '"' || it == '\\') "\\u%04x".format(it.code) else it.toString()
        }

        /** The library's level for Android's: drafts at RUNNING_LOW, all at RUNNING_CRITICAL and from BACKGROUND on. */
        internal fun steps(level: Int) = when {
            level == 15 || level >= 40 -> 2
            level == 10 -> 1
            else -> 0
        }
    }
}

/** The functions of `jni.cpp`; texts are UTF-8. */
internal object Native {
    init {
        System.loadLibrary("edgedecode")
    }

    @JvmStatic external fun plan(folder: ByteArray, options: ByteArray): ByteArray
    @JvmStatic external fun open(folder: ByteArray, options: ByteArray): Long
    @JvmStatic external fun info(pack: Long): ByteArray
    @JvmStatic external fun trim(pack: Long, level: Int): Long
    @JvmStatic external fun close(pack: Long)
    @JvmStatic external fun session(pack: Long, options: ByteArray): Long
    @JvmStatic external fun generate(session: Long, request: ByteArray, onText: Predicate<ByteArray>): Int
    @JvmStatic external fun cancel(session: Long)
    @JvmStatic external fun stats(session: Long): ByteArray
    @JvmStatic external fun rewind(session: Long, turns: Int)
    @JvmStatic external fun closeSession(session: Long)
}
