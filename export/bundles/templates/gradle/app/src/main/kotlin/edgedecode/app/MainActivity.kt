package edgedecode.app

import android.app.Activity
import android.os.Bundle
import android.util.Log
import android.widget.Button
import android.widget.EditText
import android.widget.LinearLayout
import android.widget.ScrollView
import android.widget.TextView
import edgedecode.Edgedecode
import java.io.File
import java.io.FileNotFoundException
import java.util.concurrent.CancellationException
import java.util.concurrent.Executors

/** A question, its answer as it is written, and a button to stop. Models run on a thread of their own. */
class MainActivity : Activity() {
    private val worker = Executors.newSingleThreadExecutor()
    private lateinit var question: EditText
    private lateinit var button: Button
    private lateinit var shown: TextView

    /** An answer is being written; only the main thread uses it. */
    private var running = false

    /** Opened by the first question. */
    @Volatile
    private var pack: Edgedecode? = null

    @Volatile
    private var session: Edgedecode.Session? = null

    /** Stop was pressed, or the activity ends: this answer does not begin, or was cancelled. */
    @Volatile
    private var stopped = false

    /** The conversation, for a session that is opened again; only the worker uses it. */
    private val said = mutableListOf<Map<String, String>>()

    /** Drafts were given back, and come with the next opening; only the worker uses it. */
    private var trimmed = false

    override fun onCreate(saved: Bundle?) {
        super.onCreate(saved)
        question = EditText(this).apply { hint = getString(R.string.question) }
        button = Button(this).apply { setOnClickListener { if (running) stop() else start() } }
        shown = TextView(this).apply { setTextIsSelectable(true) }
        val column = LinearLayout(this).apply {
            orientation = LinearLayout.VERTICAL
            fitsSystemWindows = true
            addView(question)
            addView(button)
            addView(ScrollView(this@MainActivity).apply { addView(shown) })
        }
        setContentView(column)
        label()
    }

    override fun onStart() {
        super.onStart()
        worker.execute {
            if (trimmed) close() // the next question opens it again, with drafts, and reads the conversation again
        }
    }

    override fun onTrimMemory(level: Int) {
        super.onTrimMemory(level)
        worker.execute { // after a running answer, which needs its memory
            if ((pack?.onTrimMemory(level) ?: 0L) > 0L) trimmed = true
        }
    }

    override fun onDestroy() {
        stop()
        worker.execute { close() }
        worker.shutdown()
        super.onDestroy()
    }

    /** In the worker. */
    private fun close() {
        session.also { session = null }?.close()
        pack.also { pack = null }?.close()
        trimmed = false
    }

    private fun stop() {
        if (stopped) return // one is enough: another would end the next answer
        stopped = true
        runCatching { session?.cancel() } // which may just be closed
    }

    private fun start() {
        val text = question.text.toString().trim()
        if (text.isEmpty()) return
        running = true
        stopped = false
        label()
        show(getString(R.string.opening))
        worker.execute {
            var cancelled = false
            try {
                cancelled = answer(session ?: opened(), text)
            } catch (error: Throwable) { // a native library that is missing and full memory are no Exceptions
                Log.e(TAG, "no answer", error)
                show(error.message ?: error.toString())
            }
            runOnUiThread {
                running = false
                label()
                // the Stop came before the answer or after its end, and would end the next one
                if (stopped && !cancelled) session.also { session = null }?.close()
            }
        }
    }

    private fun opened(): Edgedecode.Session {
        val folder = folder()
        // the plan for the bundle's device; what was learnt about this one is kept between starts
        val given = arrayOf<Pair<String, Any?>>(@OPTIONS@, "experience" to File(filesDir, "experience.json").path)
        val opened = pack ?: Edgedecode(folder.path, Edgedecode.json(*given)).also { pack = it }
        return opened.session(Edgedecode.json("messages" to said)).also { session = it }
    }

    /** Answers, and returns whether the answer was cancelled. */
    private fun answer(session: Edgedecode.Session, text: String): Boolean {
        val answer = StringBuilder()
        val cancelled = try {
            if (!stopped) session.generate(Edgedecode.json("message" to text)) {
                show(answer.append(it).toString())
                true
            }
            Log.i(TAG, session.stats())
            false
        } catch (stop: CancellationException) {
            true
        }
        if (answer.isNotEmpty()) for ((role, content) in listOf("user" to text, "assistant" to answer.toString()))
            said += mapOf("role" to role, "content" to content)
        if (cancelled || stopped && answer.isEmpty()) show("$answer ${getString(R.string.stopped)}".trim())
        return cancelled
    }

    /** The folder that install.sh pushed, else the AI pack's files, copied out once: the library maps files. */
    private fun folder(): File {
        val pushed = File("/data/local/tmp/$packageName/${getString(R.string.bundle)}/native")
        if (File(pushed, LISTING).canRead()) return pushed
        val listing = try {
            assets.open("bundle/native/$LISTING").use { it.readBytes() }
        } catch (error: FileNotFoundException) {
            throw IllegalStateException("no models: run install.sh, or build with the AI pack (README.md)", error)
        }
        val root = File(filesDir, "native")
        val copied = File(root, LISTING)
        if (copied.isFile && copied.readBytes().contentEquals(listing)) return root
        root.deleteRecursively() // an older version, or a copy that was cut off
        copy("bundle/native", root)
        copied.writeBytes(listing) // last: it says that all is there
        return root
    }

    private fun copy(name: String, place: File) {
        val inside = assets.list(name).orEmpty()
        for (each in inside) if (each != LISTING) copy("$name/$each", File(place, each))
        if (inside.isNotEmpty()) return
        place.parentFile?.mkdirs()
        assets.open(name).use { input -> place.outputStream().use { input.copyTo(it) } }
    }

    private fun show(text: String) = runOnUiThread { shown.text = text }

    private fun label() = button.setText(if (running) R.string.stop else R.string.ask)

    private companion object {
        const val TAG = "edgedecode"
        const val LISTING = "native.json"
    }
}
