import edgedecode.Edgedecode
import java.util.concurrent.CancellationException

/** Uses the class as an app does: FOLDER OPTIONS MESSAGE. */
fun main(given: Array<String>) {
    check(Edgedecode.plan(given[0], given[1]).startsWith("{"))
    val text = StringBuilder()
    Edgedecode(given[0], given[1]).use { pack ->
        val session = pack.session(Edgedecode.json("seed" to 3, "temperature" to 0.8))
        val asked = Edgedecode.json(
            "message" to given[2] + "\u0000\"\\\n", "max_tokens" to 40, "stop" to listOf("\u0001", "🙂 never"),
            "logit_bias" to mapOf("5" to -2.5),
        )
        val count = session.generate(asked) { text.append(it); true }
        check(count in 1..40)
        println(asked)
        println(session.stats())
        println(text.toString().toByteArray().joinToString(" "))
        session.rewind(0)
        val own = Exception("of the app")
        val found = runCatching { session.generate(asked) { throw own } }.exceptionOrNull()
        check(found === own)
        session.cancel()
        check(runCatching { session.generate(asked) { true } }.exceptionOrNull() is CancellationException)
        check(pack.onTrimMemory(20) == 0L) // TRIM_MEMORY_UI_HIDDEN
        check(pack.onTrimMemory(40) > 0L) // TRIM_MEMORY_BACKGROUND
        check(pack.info().contains("\"holders\""))
        session.close()
        check(runCatching { session.stats() }.exceptionOrNull() is IllegalStateException)
    }
    println("all held")
}
