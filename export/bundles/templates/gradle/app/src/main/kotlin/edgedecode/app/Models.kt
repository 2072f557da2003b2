package edgedecode.app

import ai.onnxruntime.OrtEnvironment
import ai.onnxruntime.OrtException
import ai.onnxruntime.OrtSession
import android.system.Os
import android.util.Log
import java.io.File

/** The models that a bundle names, on the NPU (provider "qnn") or the processor ("cpu"). */
class Models private constructor(val target: Model, val draft: Model?, val provider: String) : AutoCloseable {
    override fun close() = listOf(target, draft).forEach { (it as? AutoCloseable)?.close() }

    companion object {
        private const val TAG = "edgedecode"
        private const val QNN = "QNNExecutionProvider"
        private const val QNN_LIBRARY = "libonnxruntime_providers_qnn.so"

        /**
         * Open the bundle at [root] for the chip numbered [soc]; null: for the processor.
         *
         * Where the NPU cannot be used the processor is. [libraries] is the app's `nativeLibraryDir`.
         */
        fun open(root: File, bundle: Bundle, soc: Int?, libraries: String): Models {
            if (soc != null && bundle.graphs("target", soc).isNotEmpty()) {
                try {
                    useNpu(libraries)
                    return open(root, bundle, soc)
                } catch (error: OrtException) {
                    Log.w(TAG, "the NPU cannot be used, the processor is", error)
                }
            }
            return open(root, bundle, null)
        }

        private fun open(root: File, bundle: Bundle, soc: Int?): Models {
            val target = model(root, bundle, "target", soc) ?: throw BundleException("the bundle has no target model")
            try {
                val draft = if (bundle.plan.draftLength > 0) model(root, bundle, "draft", soc) else null
                return Models(target, draft, if (soc == null) "cpu" else "qnn")
            } catch (error: OrtException) {
                (target as AutoCloseable).close() // else it would stay in memory beside the processor's
                throw error
            }
        }

        private fun model(root: File, bundle: Bundle, role: String, soc: Int?): Model? {
            val graphs = bundle.graphs(role, soc)
            if (graphs.isEmpty()) return null
            if (soc == null) return GrowingModel(session(root, bundle, graphs[0], npu = false), bundle.plan.context)
            val sessions = mutableMapOf<Int, OrtSession>()
            try {
                for (graph in graphs) sessions[graph.width] = session(root, bundle, graph, npu = true)
            } catch (error: OrtException) {
                sessions.values.forEach { it.close() }
                throw error
            }
            return FixedModel(sessions, graphs[0].slots, bundle.models.getValue(role).window)
        }

        private fun session(root: File, bundle: Bundle, graph: BundleGraph, npu: Boolean): OrtSession {
            val environment = OrtEnvironment.getEnvironment()
            val options = OrtSession.SessionOptions() // not closed: it has to last as long as the session
            options.setIntraOpNumThreads(bundle.plan.threads)
            if (npu) {
                // Without this, what the NPU cannot run would silently run on the processor, slowly.
                options.addConfigEntry("session.disable_cpu_ep_fallback", "1")
                val devices = environment.epDevices.filter { it.epName == QNN }
                options.addExecutionProvider(devices, mapOf("backend_type" to "htp", "htp_performance_mode" to "burst"))
            }
            return environment.createSession(File(root, graph.file).path, options)
        }

        /** Load Qualcomm's provider once. Throws OrtException if the device has no NPU for it. */
        private fun useNpu(libraries: String) {
            val environment = OrtEnvironment.getEnvironment()
            Os.setenv("ADSP_LIBRARY_PATH", libraries, true) // where the NPU's driver looks for its own part
            if (environment.epDevices.none { it.epName == QNN }) {
                environment.registerExecutionProviderLibrary(QNN, QNN_LIBRARY)
            }
            if (environment.epDevices.none { it.epName == QNN }) throw OrtException("no device for $QNN")
        }
    }
}
